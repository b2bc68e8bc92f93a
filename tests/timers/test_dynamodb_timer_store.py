"""The URL and the items of the timer store on DynamoDB, without a server."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

pytest.importorskip("boto3")

from timers.stores.dynamodb.address import DynamoDbAddress
from timers.stores.dynamodb.items import encode_time
from timers.stores.factory import build_store
from timers.stores.port import EPOCH, NO_CELL
from timers.stores.store_spec import StoreSpec

SECRET = "s3cret"


def parse(url: str) -> DynamoDbAddress:
    return DynamoDbAddress.parse(StoreSpec.parse(f"main={url}").parts)


def test_a_url_names_region_and_table() -> None:
    assert parse("dynamodb://eu-central-1/My_Timers.2") == DynamoDbAddress("eu-central-1", "My_Timers.2")


def test_a_url_can_have_credentials_and_an_endpoint() -> None:
    address = parse("dynamodb://KEY:a%2Fb%2B%40@us-east-1/timers?endpoint=http://127.0.0.1:18000")
    assert address == DynamoDbAddress("us-east-1", "timers", "http://127.0.0.1:18000", "KEY", "a/b+@")
    assert "KEY" not in repr(address)
    assert "a/b+@" not in repr(address)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("dynamodb://localhost:8000/timers", "a region such as eu-central-1"),
        ("dynamodb://dynamodb.eu-central-1.amazonaws.com/timers", "a region such as eu-central-1"),
        (f"dynamodb://KEY:{SECRET}/x@eu-central-1/timers", "/ in a secret is written as %2F"),
        (f"dynamodb://KEY:{SECRET}?x@eu-central-1/timers", "the URL must name a host and a database"),
        ("dynamodb://eu-central-1/t", "3 to 255 letters"),
        ("dynamodb://eu-central-1/a/timers", "3 to 255 letters"),
        (f"dynamodb://{SECRET}@eu-central-1/timers", "both an access key and its secret"),
        (f"dynamodb://eu-central-1/timers?{SECRET}=1", "the only option of the URL is endpoint"),
        (
            "dynamodb://eu-central-1/timers?endpoint=http://a&endpoint=http://b",
            "the only option of the URL is endpoint",
        ),
        ("dynamodb://eu-central-1/timers?endpoint=127.0.0.1:8000", "an http or https URL"),
        ("dynamodb://eu-central-1/timers?endpoint=http://[", "an http or https URL"),
    ],
)
def test_a_wrong_url_is_refused_without_being_quoted(url: str, message: str) -> None:
    with pytest.raises(ValueError, match=r"main: ") as raised:
        build_store(StoreSpec.parse(f"main={url}"), NO_CELL)
    assert message in str(raised.value)
    assert SECRET not in str(raised.value)


def test_texts_of_times_are_ordered_as_the_times() -> None:
    times = [
        EPOCH,
        EPOCH + timedelta(milliseconds=1),
        datetime(2026, 3, 1, 12, tzinfo=UTC),
        datetime(2026, 3, 1, 12, 0, 0, 999_000, tzinfo=UTC),
        datetime(2026, 10, 1, tzinfo=UTC),
        datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC),
    ]
    texts = [encode_time(moment) for moment in times]
    assert texts == sorted(texts)
    assert {len(text) for text in texts} == {24}
    assert [datetime.fromisoformat(text) for text in texts] == times

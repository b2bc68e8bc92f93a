"""Rows that are written in bulk are stored as single rows are, on every database."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction

from eventservice.db.bulk import execute_rows, insert_rows
from eventservice.kernel.ids import new_id
from outbox.models import OutboxEvent
from tests.factories import OutboxEventFactory

pytestmark = pytest.mark.django_db

COLUMNS = (
    "tenant_id", "aggregate_id", "aggregate_seq", "event_type", "event_payload", "created_at", "published_at",
    "event_id", "correlation_id", "partition", "attempts", "last_error",
)  # fmt: skip
TENANT = new_id()
WHOLE_SECOND = datetime(2026, 3, 1, 12, tzinfo=UTC)
WITH_MICROSECONDS = WHOLE_SECOND.replace(microsecond=1)


def build_row(seq: int, **changes: Any) -> list[Any]:
    values: dict[str, Any] = {
        "tenant_id": TENANT, "aggregate_id": TENANT, "aggregate_seq": seq, "event_type": "T", "event_payload": {},
        "created_at": WHOLE_SECOND, "published_at": None, "event_id": new_id(), "correlation_id": TENANT,
        "partition": 3, "attempts": 0, "last_error": None,
    }  # fmt: skip
    return [(values | changes)[column] for column in COLUMNS]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("event_payload", {"a": [1, None, True, 1.5, "ü ☕ ' \" \\ % %s {} \n"], "b": {}}),
        ("event_payload", []),
        ("event_id", uuid.UUID("00000000-0000-7000-8000-00000000000f")),
        ("created_at", WHOLE_SECOND),
        ("created_at", WITH_MICROSECONDS),
        ("published_at", WITH_MICROSECONDS),
        ("last_error", "ü ☕ ' \" \\ % %s {} \n"),
        ("last_error", ""),
        ("last_error", None),
        ("attempts", 2**31 - 1),
    ],
)
def test_the_orm_reads_a_value_as_it_was_written(column: str, value: Any) -> None:
    assert insert_rows(OutboxEvent, COLUMNS, [build_row(1, **{column: value})]) == 1
    assert getattr(OutboxEvent.objects.for_tenant(TENANT).get(), column) == value


def test_a_value_is_stored_as_the_orm_stores_it() -> None:
    insert_rows(OutboxEvent, COLUMNS, [build_row(1, event_payload={"a": 1}, created_at=WHOLE_SECOND)])
    same = {"tenant_id": TENANT, "aggregate_id": TENANT, "created_at": WHOLE_SECOND}
    OutboxEventFactory(**same, aggregate_seq=2, event_payload={"a": 1})
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM outbox GROUP BY tenant_id, aggregate_id, created_at")
        assert [count for (count,) in cursor.fetchall()] == [2]


def test_many_rows_keep_their_order() -> None:
    assert insert_rows(OutboxEvent, COLUMNS, (build_row(n) for n in range(2500))) == 2500
    numbers = OutboxEvent.objects.for_tenant(TENANT).order_by("id").values_list("aggregate_seq", flat=True)
    assert list(numbers) == list(range(2500))


def test_an_update_counts_the_rows_that_match_its_condition() -> None:
    insert_rows(OutboxEvent, COLUMNS, [build_row(n, attempts=n % 2) for n in range(10)])
    guarded = "UPDATE outbox SET attempts = %s WHERE tenant_id = %s AND aggregate_seq = %s AND attempts = 0"
    assert execute_rows(guarded, [(0, TENANT, n) for n in range(10)]) == 5  # also those that stay as they are
    assert execute_rows(guarded, [(7, TENANT, n) for n in range(10)]) == 5
    assert execute_rows(guarded, [(8, TENANT, n) for n in range(10)]) == 0


def test_no_statement_is_executed_for_no_rows() -> None:
    assert insert_rows(OutboxEvent, COLUMNS, []) == 0
    assert execute_rows("not even SQL", iter(())) == 0


def test_one_bad_row_stores_none_of_the_batch() -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        insert_rows(OutboxEvent, COLUMNS, [build_row(1), build_row(2), build_row(1)])
    assert not OutboxEvent.objects.for_tenant(TENANT).exists()

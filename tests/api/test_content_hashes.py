"""Every valid submission has a hash, by which a repeat under its idempotency key is recognized."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eventservice.api.schema.submissions import parse_submission
from eventservice.api.schema.types import CallContext
from eventservice.tenants.directory import get_profile
from orchestration.commands import RequestSpec, SubmitServiceCall
from orchestration.retries import RetryPolicy
from orchestration.states import Delivery
from tests.api.conftest import Api, build_submission

pytestmark = pytest.mark.django_db

URL = "http://target.test/hook"

DURATIONS = st.sampled_from(["0s", "0.0s", "PT0S", "P0W", "0.000001s", "90s", "1d12h", "P1W"])
INTERVALS = st.sampled_from(["0.001s", "1s", "PT5M", "30d"])
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
OPTIONAL = {
    "tags": st.lists(st.sampled_from(["a", "b", "favorite"]), max_size=3),
    "namespace": st.just("default"),
    "serviceCallId": st.just("01900000-0000-7000-8000-000000000001"),
    "timeoutSeconds": st.integers(1, 60) | st.floats(0.1, 60),
    "delivery": st.sampled_from([delivery.value for delivery in Delivery]),
    "retryPolicy": st.fixed_dictionaries(
        {},
        optional={
            "maxAttempts": st.sampled_from([1, 5, 5.0, 100]),
            "maxAttemptsDuration": st.sampled_from(["1s", "30d"]),
            "initialInterval": INTERVALS,
            "maxInterval": INTERVALS,
            "backoffMultiplier": st.integers(1, 100) | st.floats(1, 100),
        },
    ),
}
WHEN: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.just({}),
    st.fixed_dictionaries({"delay": DURATIONS | st.none()}),
    st.fixed_dictionaries(
        {"dueAt": st.sampled_from(["1970-01-01T00:00:00Z", "2027-01-01T00:00:00.5+02:00", None])}
    ),
)
SUBMISSIONS = st.builds(
    lambda spec, when, more: {"name": "greet", "requestSpec": spec, **when, **more},
    st.fixed_dictionaries(
        {"method": st.sampled_from(["GET", "POST"]), "url": st.just(URL)},
        optional={
            "headers": st.dictionaries(st.sampled_from(["X-A", "X-B"]), st.text("az 09", max_size=3)),
            "body": JSON,
        },
    ),
    WHEN,
    st.fixed_dictionaries({}, optional=OPTIONAL),
)


@settings(deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(document=SUBMISSIONS)
def test_every_valid_submission_has_a_stable_hash(acme: Api, document: dict[str, Any]) -> None:
    context = CallContext(get_profile(acme.tenant.tenant_id), uuid.uuid4())
    first, repeat = (parse_submission(document, context) for _ in range(2))
    assert first.content_hash == repeat.content_hash


@pytest.mark.parametrize("delay", ["0s", "PT0S", "P0W"])
def test_a_delay_of_nothing_can_be_repeated_under_its_key(acme: Api, delay: str) -> None:
    headers = {"Idempotency-Key": "now"}
    first, repeat = (
        acme.post("/service-calls", build_submission(delay=delay), headers=headers) for _ in range(2)
    )
    assert (first.status_code, repeat.status_code) == (202, 202), first.content
    assert repeat["Idempotent-Replayed"] == "true"
    assert first.json()["serviceCallId"] == repeat.json()["serviceCallId"]


def test_a_delay_of_nothing_is_accepted_in_a_batch_with_keys(acme: Api) -> None:
    items = [build_submission(delay="0s", idempotencyKey=key) for key in ("one", "two")]
    response = acme.post("/service-calls/batch", {"items": items})
    assert (response.status_code, response.json()["accepted"]) == (202, 2)


def test_hashes_are_those_of_earlier_versions() -> None:
    """A key that was used before an upgrade must be recognized after it."""
    tenant_id = uuid.UUID(int=1)
    plain = SubmitServiceCall(tenant_id, "call", RequestSpec("POST", URL, {"X-Shown": "yes"}, {"n": 1}))
    full = SubmitServiceCall(
        tenant_id,
        "call",
        RequestSpec("PUT", URL, body="text"),
        delay=timedelta(seconds=90),
        tags=frozenset({"a", "b"}),
        retry_policy=RetryPolicy(max_attempts=3),
        delivery=Delivery.AT_MOST_ONCE,
    )
    timed = SubmitServiceCall(
        tenant_id, "call", RequestSpec("GET", URL), due_at=datetime(2027, 1, 1, tzinfo=UTC)
    )
    assert [command.content_hash for command in (plain, full, timed)] == [
        "e53e1662d3d354803182a48eccc5a790e4f81425cc4b1a732a001cdd09898ace",
        "5379db784e63a3ecc3ace37cca70a9a7851cf32e46d4be0fe67c8d525fadd3ea",
        "34fa004b5d0798587d14aacd5870456360af29870a931066d9845925c713f1b0",
    ]

"""A call that has failed says why it was not attempted again."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from execution.outcome import ErrorKind
from orchestration import lifecycle
from orchestration.final_failures import explain_final_failure
from orchestration.queries import calls
from orchestration.retries import RetryPolicy
from orchestration.states import Delivery, ResponseContract
from tests.orchestration.support import ManualEngine, build_error, build_response, submit

pytestmark = pytest.mark.django_db

ATTEMPTS_LEFT = RetryPolicy(max_attempts=5, initial_interval=0)
SENT_BEFORE = "The call is delivered at most once, and its request may already have been sent."
TOO_LATE = "The next attempt would start later than maxAttemptsDuration of the retry policy allows"


def explain(tenant: Any, call: uuid.UUID) -> str | None:
    return explain_final_failure(calls.get_call(tenant.tenant_id, call))


@pytest.mark.parametrize(
    ("status", "given", "expected"),
    [
        (500, {}, "Only one attempt was allowed."),
        (404, {"retry_policy": ATTEMPTS_LEFT}, "Status 404 is not retried."),
        (302, {"retry_policy": ATTEMPTS_LEFT}, "Status 302 is not retried."),
        (302, {"response_contract": ResponseContract.CALLBACK}, "Only one attempt was allowed."),
        (500, {"retry_policy": ATTEMPTS_LEFT, "delivery": Delivery.AT_MOST_ONCE}, SENT_BEFORE),
        (
            503,
            {"retry_policy": RetryPolicy(max_attempts=5, max_attempts_duration=60.0)},
            f"{TOO_LATE}: the response asked for a pause (Retry-After: 3600).",
        ),
    ],
)
def test_a_response_that_ends_a_call_is_explained(
    tenant: Any, manual_engine: ManualEngine, status: int, given: dict[str, Any], expected: str
) -> None:
    call = submit(tenant, **given)
    assert explain(tenant, call) is None
    started = manual_engine.start_one()
    manual_engine.finish((started, build_response(started, status, headers={"retry-after": "3600"})))
    assert explain(tenant, call) == expected


def test_an_error_that_ends_a_call_is_explained(tenant: Any, manual_engine: ManualEngine) -> None:
    refused = submit(tenant, retry_policy=ATTEMPTS_LEFT)
    started = manual_engine.start_one()
    manual_engine.finish((started, build_error(started, ErrorKind.EGRESS)))
    assert explain(tenant, refused) == "This error is not retried."
    slow = submit(
        tenant, retry_policy=RetryPolicy(max_attempts=5, initial_interval=30.0, max_attempts_duration=1e-6)
    )
    started = manual_engine.start_one()
    manual_engine.finish((started, build_error(started, ErrorKind.CONNECT)))
    assert explain(tenant, slow) == f"{TOO_LATE}."


def test_the_last_of_several_attempts_is_explained(tenant: Any, manual_engine: ManualEngine) -> None:
    call = submit(tenant, retry_policy=RetryPolicy(max_attempts=2, initial_interval=0))
    for _ in range(2):
        assert explain(tenant, call) is None
        started = manual_engine.start_one()
        manual_engine.finish((started, build_error(started)))
    assert explain(tenant, call) == "All 2 attempts were made."


def test_a_call_that_did_not_fail_needs_no_explanation(tenant: Any, manual_engine: ManualEngine) -> None:
    done, canceled = submit(tenant), submit(tenant)
    lifecycle.cancel(tenant.tenant_id, canceled)
    started = manual_engine.start_one()
    manual_engine.finish((started, build_response(started)))
    assert [explain(tenant, call) for call in (done, canceled)] == [None, None]

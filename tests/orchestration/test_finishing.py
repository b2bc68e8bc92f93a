"""An outcome is recorded once, for the call's current attempt."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from eventservice.db.now import pin_time
from eventservice.kernel.ids import new_id
from execution.attempt_log import AttemptKey
from execution.outcome import Outcome
from orchestration import lifecycle
from orchestration.retries import RetryPolicy
from tests.orchestration.support import (
    ManualEngine,
    add_to_noon,
    build_error,
    build_response,
    find_timer,
    get_call,
    get_status,
    list_attempts,
    list_events,
    read_all_rows,
    submit,
)

pytestmark = pytest.mark.django_db

TWICE = RetryPolicy(max_attempts=2, initial_interval=0)


def test_a_success_ends_the_call_with_its_response(manual_engine: ManualEngine, tenant: Any) -> None:
    service_call_id = submit(tenant)
    started = manual_engine.start_one()

    with pin_time(add_to_noon(2)):
        assert manual_engine.finish((started, build_response(headers={"X-Api-Key": "s3cret", "A": "b"}))) == 1

    call = get_call(tenant, service_call_id)
    assert (call.status, call.finished_at, call.deadline_at) == ("Succeeded", add_to_noon(2), None)
    assert call.outcome_meta == {
        "responseMeta": {
            "status": 200,
            "headers": {"X-Api-Key": "••••••", "A": "b"},
            "bodySnippet": '{"ok": true}',
            "latencyMs": 12.3,
        }
    }
    (row,) = list_attempts(tenant, service_call_id)
    assert (row.finished_at, row.response_status) == (add_to_noon(2), 200)


def test_the_last_failure_ends_the_call_with_its_error(manual_engine: ManualEngine, tenant: Any) -> None:
    service_call_id = submit(tenant)
    manual_engine.finish((manual_engine.start_one(), build_error()))
    call = get_call(tenant, service_call_id)
    assert call.status == "Failed"
    assert call.outcome_meta["errorMeta"] == {
        "kind": "Connect",
        "message": "It did not work.",
        "details": {"phase": "x"},
        "latencyMs": 5.0,
    }


def test_a_retryable_failure_is_retried_at_the_policys_time(
    manual_engine: ManualEngine, tenant: Any, at_noon: datetime
) -> None:
    service_call_id = submit(tenant, retry_policy=RetryPolicy(max_attempts=2, initial_interval=60))

    manual_engine.finish((manual_engine.start_one(), build_error()))

    call, timer = get_call(tenant, service_call_id), find_timer(tenant, service_call_id)
    assert (call.status, call.finished_at, call.deadline_at) == ("Scheduled", None, None)
    assert at_noon <= call.due_at <= add_to_noon(60)
    assert timer is not None
    assert (timer.state, timer.due_at, timer.reached_at) == ("Scheduled", call.due_at, None)
    assert call.outcome_meta["errorMeta"]["kind"] == "Connect"


def test_a_call_fails_after_the_last_attempt_of_its_policy(manual_engine: ManualEngine, tenant: Any) -> None:
    service_call_id = submit(tenant, retry_policy=TWICE)
    manual_engine.finish((manual_engine.start_one(), build_error()))
    manual_engine.finish((manual_engine.start_one(), build_error()))
    assert get_status(tenant, service_call_id) == "Failed"
    assert len(list_attempts(tenant, service_call_id)) == 2


def test_the_terminal_event_names_the_attempt_as_its_cause(manual_engine: ManualEngine, tenant: Any) -> None:
    service_call_id = submit(tenant)
    started = manual_engine.start_one()
    manual_engine.finish((started, build_response(status=404)))
    failed = list_events(tenant, service_call_id)[-1]
    assert failed.causation_id == started.key.execution_id
    assert failed.event_payload == {
        "name": "call",
        "namespace": "default",
        "timerId": None,
        "attempt": 1,
        "executionId": str(started.key.execution_id),
        "status": 404,
        "error": "HttpStatus",
        "latencyMs": 12.3,
    }


def test_each_call_of_a_batch_ends_with_its_own_outcome(
    manual_engine: ManualEngine, tenant: Any, intruder: Any
) -> None:
    calls = {
        name: submit(tenant, name=name, retry_policy=TWICE) for name in ("fine", "final", "again", "cancel")
    }
    theirs = submit(intruder)
    by_call = {call.key.service_call_id: call for call in manual_engine.start()}
    lifecycle.cancel(tenant.tenant_id, calls["cancel"])
    outcomes: dict[str, Outcome] = {
        "fine": build_response(),
        "final": build_response(status=404),
        "again": build_error(),
        "cancel": build_error(),
    }

    moved = manual_engine.finish(
        *((by_call[calls[name]], o) for name, o in outcomes.items()), (by_call[theirs], build_response())
    )

    assert moved == 5
    statuses = {name: get_status(tenant, service_call_id) for name, service_call_id in calls.items()}
    assert statuses == {"fine": "Succeeded", "final": "Failed", "again": "Scheduled", "cancel": "Canceled"}
    assert get_status(intruder, theirs) == "Succeeded"


def test_calls_of_two_tenants_with_one_id_end_with_their_own_outcomes(
    manual_engine: ManualEngine, tenant: Any, intruder: Any
) -> None:
    given = new_id()
    for whose in (tenant, intruder):
        submit(whose, service_call_id=given)
    outcomes = {tenant.tenant_id: build_response(), intruder.tenant_id: build_response(status=404)}

    manual_engine.finish(*((call, outcomes[call.key.tenant_id]) for call in manual_engine.start()))

    assert (get_status(tenant, given), get_status(intruder, given)) == ("Succeeded", "Failed")


def test_an_outcome_of_another_attempt_only_closes_its_log_row(
    manual_engine: ManualEngine, tenant: Any
) -> None:
    service_call_id = submit(tenant)
    stale = manual_engine.start_one()
    lifecycle.resolve_interrupted([stale.key])
    manual_engine.start_one()
    before = read_all_rows()

    assert manual_engine.finish((stale, build_response())) == 0

    assert read_all_rows() == before
    first, second = list_attempts(tenant, service_call_id)
    assert (first.response_status, first.error_kind) == (200, None)
    assert second.finished_at is None


def test_a_stale_outcome_does_not_hide_the_current_one(manual_engine: ManualEngine, tenant: Any) -> None:
    service_call_id = submit(tenant)
    stale = manual_engine.start_one()
    lifecycle.resolve_interrupted([stale.key])
    present = manual_engine.start_one()
    manual_engine.finish((present, build_response()), (stale, build_error()))
    assert get_status(tenant, service_call_id) == "Succeeded"


def test_an_outcome_that_arrives_twice_is_recorded_once(manual_engine: ManualEngine, tenant: Any) -> None:
    submit(tenant)
    started = manual_engine.start_one()
    manual_engine.finish((started, build_response()))
    before = read_all_rows()
    manual_engine.finish((started, build_response(status=500)))
    assert read_all_rows() == before


def test_an_outcome_under_another_tenants_key_moves_nothing(
    manual_engine: ManualEngine, tenant: Any, intruder: Any
) -> None:
    submit(tenant)
    started = manual_engine.start_one()
    before = read_all_rows()
    forged = AttemptKey(intruder.tenant_id, started.key.service_call_id, started.key.execution_id)
    assert lifecycle.finish([(forged, build_response())], manual_engine.membership.fence) == 0
    assert read_all_rows() == before


def test_recording_nothing_checks_no_fence() -> None:
    assert lifecycle.finish([], fence=lambda: pytest.fail("asked")) == 0

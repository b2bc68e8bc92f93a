"""When an attempt is interrupted, its call goes on as its delivery mode says."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from eventservice.db.now import pin_time
from execution.attempt_log import interrupt_attempts
from orchestration import lifecycle
from orchestration.engine.recovery import resolve_stuck_calls
from orchestration.lifecycle import MAX_INTERRUPTIONS
from orchestration.retries import RetryPolicy
from orchestration.states import Delivery
from tests.orchestration.support import (
    ManualEngine,
    add_to_noon,
    build_error,
    build_response,
    get_call,
    get_status,
    list_attempts,
    list_events,
    read_all_rows,
    submit,
)

pytestmark = pytest.mark.django_db


def test_an_at_least_once_call_is_attempted_again_at_once(
    manual_engine: ManualEngine, tenant: Any, at_noon: datetime
) -> None:
    service_call_id = submit(tenant)
    first = manual_engine.start_one()

    assert lifecycle.resolve_interrupted([first.key]) == 1

    call = get_call(tenant, service_call_id)
    assert (call.status, call.due_at, call.interruptions) == ("Scheduled", at_noon, 1)
    assert call.outcome_meta["errorMeta"]["kind"] == "Interrupted"
    assert manual_engine.start_one().attempt == 2
    (interrupted, running) = list_attempts(tenant, service_call_id)
    assert (interrupted.error_kind, interrupted.finished_at) == ("Interrupted", at_noon)
    assert running.finished_at is None


def test_an_interruption_does_not_count_against_the_retry_policy(
    manual_engine: ManualEngine, tenant: Any
) -> None:
    service_call_id = submit(tenant, retry_policy=RetryPolicy(max_attempts=2, initial_interval=0))
    for _ in range(3):
        lifecycle.resolve_interrupted([manual_engine.start_one().key])
    manual_engine.finish((manual_engine.start_one(), build_error()))
    assert get_status(tenant, service_call_id) == "Scheduled"
    manual_engine.finish((manual_engine.start_one(), build_error()))
    assert (get_status(tenant, service_call_id), get_call(tenant, service_call_id).attempt) == ("Failed", 5)


def test_an_at_most_once_call_fails_as_interrupted(manual_engine: ManualEngine, tenant: Any) -> None:
    service_call_id = submit(
        tenant, delivery=Delivery.AT_MOST_ONCE, retry_policy=RetryPolicy(max_attempts=9, initial_interval=0)
    )
    lifecycle.resolve_interrupted([manual_engine.start_one().key])
    call = get_call(tenant, service_call_id)
    assert (call.status, call.outcome_meta["errorMeta"]["kind"]) == ("Failed", "Interrupted")
    assert list_events(tenant, service_call_id)[-1].event_payload["error"] == "Interrupted"
    assert manual_engine.start() == []


def test_a_call_that_is_interrupted_too_often_fails(manual_engine: ManualEngine, tenant: Any) -> None:
    service_call_id = submit(tenant)
    for _ in range(MAX_INTERRUPTIONS):
        lifecycle.resolve_interrupted([manual_engine.start_one().key])
    assert get_status(tenant, service_call_id) == "Scheduled"
    lifecycle.resolve_interrupted([manual_engine.start_one().key])
    assert get_status(tenant, service_call_id) == "Failed"


def test_an_attempt_that_was_recorded_meanwhile_is_not_interrupted(
    manual_engine: ManualEngine, tenant: Any
) -> None:
    service_call_id = submit(tenant)
    started = manual_engine.start_one()
    manual_engine.finish((started, build_response()))
    before = read_all_rows()

    assert lifecycle.resolve_interrupted([started.key]) == 0

    assert read_all_rows() == before
    (row,) = list_attempts(tenant, service_call_id)
    assert (row.response_status, row.error_kind) == (200, None)


def test_only_the_current_attempt_can_be_interrupted(manual_engine: ManualEngine, tenant: Any) -> None:
    service_call_id = submit(tenant)
    first = manual_engine.start_one()
    lifecycle.resolve_interrupted([first.key])
    manual_engine.start_one()
    assert lifecycle.resolve_interrupted([first.key]) == 0
    assert get_status(tenant, service_call_id) == "Running"


def test_calls_of_two_tenants_with_one_id_are_all_resolved(
    manual_engine: ManualEngine, tenant: Any, intruder: Any
) -> None:
    given = submit(tenant)
    submit(intruder, service_call_id=given)
    assert lifecycle.resolve_interrupted([call.key for call in manual_engine.start()]) == 2
    assert get_status(tenant, given) == get_status(intruder, given) == "Scheduled"


def test_the_watchdog_finds_attempts_past_their_deadline_and_no_others(
    manual_engine: ManualEngine, tenant: Any
) -> None:
    submit(tenant, timeout_seconds=10)
    soon = manual_engine.start_one()
    submit(tenant, timeout_seconds=100)
    manual_engine.start_one()
    with pin_time(add_to_noon(24.9)):
        assert lifecycle.list_overdue_attempts(10) == []
    with pin_time(add_to_noon(25)):
        assert lifecycle.list_overdue_attempts(10) == [soon.key]


def test_attempts_of_nodes_that_are_gone_are_resolved_on_demand(
    manual_engine: ManualEngine, tenant: Any
) -> None:
    overdue, running = submit(tenant, timeout_seconds=1), submit(tenant, timeout_seconds=3600)
    manual_engine.start()
    with pin_time(add_to_noon(20)):
        assert resolve_stuck_calls() == 0  # a node leaves or is reaped before its calls are resolved
        manual_engine.membership.leave()
        assert resolve_stuck_calls() == 2
    assert get_status(tenant, overdue) == get_status(tenant, running) == "Scheduled"


def test_an_overdue_call_that_no_attempt_in_the_log_belongs_to_is_resolved_on_demand(
    manual_engine: ManualEngine, tenant: Any
) -> None:
    service_call_id = submit(tenant, timeout_seconds=1)
    started = manual_engine.start_one()
    interrupt_attempts([started.key], add_to_noon(0))
    assert resolve_stuck_calls() == 0
    with pin_time(add_to_noon(20)):
        assert resolve_stuck_calls() == 1
    assert get_status(tenant, service_call_id) == "Scheduled"

"""A waiting call may be given another due time, or run now; no other call may."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from eventservice.db.now import pin_time
from eventservice.kernel.errors import Conflict, NotFound
from orchestration import lifecycle
from orchestration.retries import RetryPolicy
from tests.orchestration.support import Hand, after, call_of, errored, events_of, everything, submit, timer_of

pytestmark = pytest.mark.django_db


def due_times(tenant: Any, service_call_id: Any) -> set[datetime]:
    timer = timer_of(tenant, service_call_id)
    assert timer is not None
    return {call_of(tenant, service_call_id).due_at, timer.due_at}


def test_call_timer_and_event_get_the_new_due_time(hand: Hand, tenant: Any) -> None:
    service_call_id = submit(tenant, due_at=after(60))
    lifecycle.reschedule(tenant.tenant_id, service_call_id, after(600))

    assert due_times(tenant, service_call_id) == {after(600)}
    told = events_of(tenant, service_call_id)[-1]
    assert (told.event_type, told.event_payload) == (
        "ServiceCallRescheduled",
        {"dueAt": "2026-03-01T12:10:00.000Z"},
    )
    with pin_time(after(599)):
        assert hand.start() == []
    with pin_time(after(600)):
        assert len(hand.start()) == 1


def test_an_earlier_time_is_as_good(hand: Hand, tenant: Any) -> None:
    service_call_id = submit(tenant, due_at=after(600))
    lifecycle.reschedule(tenant.tenant_id, service_call_id, after(60))
    with pin_time(after(60)):
        assert len(hand.start()) == 1


def test_without_a_time_it_runs_now(hand: Hand, tenant: Any, at_noon: datetime) -> None:
    service_call_id = submit(tenant, due_at=after(600))
    lifecycle.reschedule(tenant.tenant_id, service_call_id, None)
    assert due_times(tenant, service_call_id) == {at_noon}
    assert len(hand.start()) == 1


def test_a_call_that_waits_for_its_next_attempt_may_run_now(hand: Hand, tenant: Any) -> None:
    service_call_id = submit(tenant, retry_policy=RetryPolicy(max_attempts=2, initial_interval=3600))
    hand.finish((hand.start_one(), errored()))
    lifecycle.reschedule(tenant.tenant_id, service_call_id, None)
    assert hand.start_one().attempt == 2


def test_while_it_runs_it_has_no_other_due_time(hand: Hand, tenant: Any) -> None:
    service_call_id = submit(tenant)
    hand.start()
    before = everything()
    with pytest.raises(Conflict) as refused:
        lifecycle.reschedule(tenant.tenant_id, service_call_id, after(60))
    assert refused.value.code == "wrong_state"
    assert everything() == before


def test_anothers_call_is_unknown(tenant: Any, intruder: Any, at_noon: datetime) -> None:
    service_call_id = submit(tenant)
    before = everything()
    with pytest.raises(NotFound):
        lifecycle.reschedule(intruder.tenant_id, service_call_id, after(60))
    assert everything() == before

"""A tenant moves or cancels a call while its attempt is recorded as one to be retried: call and timer stay one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from eventservice.db.now import db_now
from eventservice.tenants.models import Tenant
from execution.attempt_log import close_attempts
from orchestration.lifecycle import attempts, cancel, reschedule
from orchestration.models import ServiceCall
from orchestration.retries import RetryPolicy
from tests.concurrency.races import node, race, status_of, submitted
from timers.models import TimerSchedule

LATE = timedelta(days=1)
# Time enough for the other to come to the call's lock. If it takes longer the test shows less, and does not fail.
HELD_SECONDS = 0.3


def while_recorded(acme: Tenant, change: Callable[[UUID], Any], monkeypatch: pytest.MonkeyPatch) -> UUID:
    """The change begins when the retry has been written and is not committed yet."""
    engine = node()
    call = submitted(acme, retry_policy=RetryPolicy(max_attempts=3, initial_interval=3600.0))
    (started,) = engine.start_due()
    written = threading.Event()

    def linger(*ended: Any) -> None:
        close_attempts(*ended)
        written.set()
        threading.Event().wait(HELD_SECONDS)

    monkeypatch.setattr(attempts, "close_attempts", linger)

    def change_then() -> Any:
        written.wait(10)
        return change(call)

    answer, recorded = race(change_then, lambda: engine.finish(started, 503))
    assert recorded == 1
    assert not isinstance(answer, BaseException), answer
    return call


def test_a_call_that_is_moved_is_due_when_its_timer_is(acme: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    moment = db_now() + LATE
    call = while_recorded(acme, lambda call: reschedule(acme.tenant_id, call, moment), monkeypatch)
    timer = TimerSchedule.objects.for_tenant(acme.tenant_id).get(service_call_id=call, state="Scheduled")
    stored = ServiceCall.objects.for_tenant(acme.tenant_id).get(service_call_id=call)
    assert stored.due_at == timer.due_at == moment


def test_a_call_that_is_canceled_has_no_timer_that_waits(
    acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = while_recorded(acme, lambda call: cancel(acme.tenant_id, call), monkeypatch)
    assert status_of(acme, call) == "Canceled"
    timers = TimerSchedule.objects.for_tenant(acme.tenant_id).filter(service_call_id=call)
    assert not timers.filter(state="Scheduled").exists()

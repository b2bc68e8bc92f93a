"""A call that is rescheduled or canceled while a retry is being recorded stays consistent with its timer."""

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
from tests.concurrency.races import race
from tests.orchestration.support import ManualEngine, build_response, get_status, submit
from timers.models import TimerSchedule

LATE = timedelta(days=1)
# Enough time for the other transaction to reach the call's lock. If it takes longer, the test proves less but passes.
HELD_SECONDS = 0.3


def change_while_recording(
    acme: Tenant, change: Callable[[UUID], Any], monkeypatch: pytest.MonkeyPatch
) -> UUID:
    """Make the change between the moment when the retry is written and the moment when it is committed."""
    engine = ManualEngine()
    call = submit(acme, retry_policy=RetryPolicy(max_attempts=3, initial_interval=3600.0))
    (started,) = engine.start()
    written = threading.Event()

    def linger(*ended: Any) -> None:
        close_attempts(*ended)
        written.set()
        threading.Event().wait(HELD_SECONDS)

    monkeypatch.setattr(attempts, "close_attempts", linger)

    def change_then() -> Any:
        written.wait(10)
        return change(call)

    answer, recorded = race(change_then, lambda: engine.finish((started, build_response(started, 503))))
    assert recorded == 1
    assert not isinstance(answer, BaseException), answer
    return call


def test_a_rescheduled_call_is_due_when_its_timer_is(acme: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    moment = db_now() + LATE
    call = change_while_recording(acme, lambda call: reschedule(acme.tenant_id, call, moment), monkeypatch)
    timer = TimerSchedule.objects.for_tenant(acme.tenant_id).get(service_call_id=call, state="Scheduled")
    stored = ServiceCall.objects.for_tenant(acme.tenant_id).get(service_call_id=call)
    assert stored.due_at == timer.due_at == moment


def test_a_canceled_call_has_no_scheduled_timer(acme: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    call = change_while_recording(acme, lambda call: cancel(acme.tenant_id, call), monkeypatch)
    assert get_status(acme, call) == "Canceled"
    timers = TimerSchedule.objects.for_tenant(acme.tenant_id).filter(service_call_id=call)
    assert not timers.filter(state="Scheduled").exists()

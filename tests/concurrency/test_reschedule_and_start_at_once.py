"""A call that is rescheduled at the moment it becomes due either waits, or runs and is not rescheduled."""

from __future__ import annotations

from datetime import timedelta

from eventservice.db.now import db_now
from eventservice.kernel.errors import Conflict
from eventservice.tenants.models import Tenant
from orchestration.lifecycle import reschedule
from tests.concurrency.races import ROUNDS, race
from tests.orchestration.support import ManualEngine, get_status, list_event_types, submit
from timers.models import TimerSchedule


def test_reschedule_and_start_at_once(acme: Tenant) -> None:
    engine = ManualEngine()
    tomorrow = db_now() + timedelta(days=1)
    for _ in range(ROUNDS):
        call = submit(acme)
        answer, started = race(lambda: reschedule(acme.tenant_id, call, tomorrow), engine.start)  # noqa: B023
        timer = TimerSchedule.objects.for_tenant(acme.tenant_id).get(service_call_id=call)
        if isinstance(answer, Conflict):
            assert [one.key.service_call_id for one in started] == [call]
            assert (timer.state, get_status(acme, call)) == ("Reached", "Running")
        else:
            assert (answer, started) == (None, [])
            assert (timer.state, timer.due_at) == ("Scheduled", tomorrow)
            assert list_event_types(acme, call) == [
                "ServiceCallSubmitted",
                "ServiceCallScheduled",
                "ServiceCallRescheduled",
            ]
        assert engine.start() == []

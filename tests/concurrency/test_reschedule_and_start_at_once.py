"""The tenant moves the due time in the moment in which the call is due: it waits, or it runs and cannot wait."""

from __future__ import annotations

from datetime import timedelta

from eventservice.db.now import db_now
from eventservice.kernel.errors import Conflict
from eventservice.tenants.models import Tenant
from orchestration.lifecycle import reschedule
from tests.concurrency.races import ROUNDS, node, race, status_of, story_of, submitted
from timers.models import TimerSchedule


def test_reschedule_and_start_at_once(acme: Tenant) -> None:
    engine = node()
    tomorrow = db_now() + timedelta(days=1)
    for _ in range(ROUNDS):
        call = submitted(acme)
        answer, started = race(lambda: reschedule(acme.tenant_id, call, tomorrow), engine.start_due)  # noqa: B023
        timer = TimerSchedule.objects.for_tenant(acme.tenant_id).get(service_call_id=call)
        if isinstance(answer, Conflict):
            assert [one.key.service_call_id for one in started] == [call]
            assert (timer.state, status_of(acme, call)) == ("Reached", "Running")
        else:
            assert (answer, started) == (None, [])
            assert (timer.state, timer.due_at) == ("Scheduled", tomorrow)
            assert story_of(acme, call) == ["Submitted", "Scheduled", "Rescheduled"]
        assert engine.start_due() == []

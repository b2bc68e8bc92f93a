"""The tenant cancels in the moment in which the call is due: it is canceled unsent, or it runs."""

from __future__ import annotations

from eventservice.tenants.models import Tenant
from orchestration.lifecycle import cancel
from orchestration.states import Status
from tests.concurrency.races import ROUNDS, node, race, status_of, story_of, submitted


def test_cancel_and_start_at_once(acme: Tenant) -> None:
    engine = node()
    for _ in range(ROUNDS):
        call = submitted(acme)
        answer, started = race(lambda: cancel(acme.tenant_id, call), engine.start_due)  # noqa: B023
        if answer == Status.CANCELED:
            assert started == []
            assert story_of(acme, call) == ["Submitted", "Scheduled", "Canceled"]
        else:
            assert answer == Status.RUNNING
            assert [one.key.service_call_id for one in started] == [call]
        assert status_of(acme, call) == answer
        assert engine.start_due() == []

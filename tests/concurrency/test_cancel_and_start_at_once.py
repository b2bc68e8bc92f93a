"""A call that is canceled at the moment it becomes due is either canceled unsent, or runs."""

from __future__ import annotations

from eventservice.tenants.models import Tenant
from orchestration.lifecycle import cancel
from orchestration.states import Status
from tests.concurrency.races import ROUNDS, race
from tests.orchestration.support import ManualEngine, get_status, list_event_types, submit


def test_cancel_and_start_at_once(acme: Tenant) -> None:
    engine = ManualEngine()
    for _ in range(ROUNDS):
        call = submit(acme)
        answer, started = race(lambda: cancel(acme.tenant_id, call), engine.start)  # noqa: B023
        if answer == Status.CANCELED:
            assert started == []
            assert list_event_types(acme, call) == [
                "ServiceCallSubmitted",
                "ServiceCallScheduled",
                "ServiceCallCanceled",
            ]
        else:
            assert answer == Status.RUNNING
            assert [one.key.service_call_id for one in started] == [call]
        assert get_status(acme, call) == answer
        assert engine.start() == []

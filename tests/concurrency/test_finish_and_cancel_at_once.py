"""A call that is canceled at the moment its attempt ends has one outcome, and one event for it."""

from __future__ import annotations

from eventservice.kernel.errors import Conflict
from eventservice.tenants.models import Tenant
from orchestration.lifecycle import cancel
from orchestration.retries import RetryPolicy
from orchestration.states import Status
from tests.concurrency.races import ROUNDS, race
from tests.orchestration.support import ManualEngine, build_response, get_status, list_event_types, submit

RETRY_LATER = RetryPolicy(max_attempts=5, initial_interval=3600.0)
STARTED = ["ServiceCallSubmitted", "ServiceCallScheduled", "DueTimeReached", "ServiceCallRunning"]


def test_a_success_stands(acme: Tenant) -> None:
    engine = ManualEngine()
    for _ in range(ROUNDS):
        call = submit(acme)
        (started,) = engine.start()
        answer, moved = race(
            lambda: cancel(acme.tenant_id, call),  # noqa: B023
            lambda: engine.finish((started, build_response(started))),  # noqa: B023
        )
        assert moved == 1
        assert answer == Status.RUNNING or isinstance(answer, Conflict)
        assert get_status(acme, call) == Status.SUCCEEDED
        assert list_event_types(acme, call) == [*STARTED, "ServiceCallSucceeded"]


def test_a_failed_attempt_is_not_retried_once_the_call_is_canceled(acme: Tenant) -> None:
    engine = ManualEngine()
    for _ in range(ROUNDS):
        call = submit(acme, retry_policy=RETRY_LATER)
        (started,) = engine.start()
        answer, moved = race(
            lambda: cancel(acme.tenant_id, call),  # noqa: B023
            lambda: engine.finish((started, build_response(started, 503))),  # noqa: B023
        )
        assert moved == 1
        assert answer in (Status.RUNNING, Status.CANCELED)
        assert get_status(acme, call) == Status.CANCELED
        ending = (
            ["ServiceCallRescheduled", "ServiceCallCanceled"]
            if answer == Status.CANCELED
            else ["ServiceCallCanceled"]
        )
        assert list_event_types(acme, call) == [*STARTED, *ending]

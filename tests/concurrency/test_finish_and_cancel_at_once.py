"""The tenant cancels in the moment in which the attempt ends: the call has one outcome, told once."""

from __future__ import annotations

from eventservice.kernel.errors import Conflict
from eventservice.tenants.models import Tenant
from orchestration.lifecycle import cancel
from orchestration.retries import RetryPolicy
from orchestration.states import Status
from tests.concurrency.races import ROUNDS, node, race, status_of, story_of, submitted

LATER = RetryPolicy(max_attempts=5, initial_interval=3600.0)
BEGUN = ["Submitted", "Scheduled", "DueTimeReached", "Running"]


def test_a_success_stands(acme: Tenant) -> None:
    engine = node()
    for _ in range(ROUNDS):
        call = submitted(acme)
        (started,) = engine.start_due()
        answer, moved = race(
            lambda: cancel(acme.tenant_id, call),  # noqa: B023
            lambda: engine.finish(started),  # noqa: B023
        )
        assert moved == 1
        assert answer == Status.RUNNING or isinstance(answer, Conflict)
        assert status_of(acme, call) == Status.SUCCEEDED
        assert story_of(acme, call) == [*BEGUN, "Succeeded"]


def test_a_failure_is_not_tried_again_once_it_is_canceled(acme: Tenant) -> None:
    engine = node()
    for _ in range(ROUNDS):
        call = submitted(acme, retry_policy=LATER)
        (started,) = engine.start_due()
        answer, moved = race(
            lambda: cancel(acme.tenant_id, call),  # noqa: B023
            lambda: engine.finish(started, status=503),  # noqa: B023
        )
        assert moved == 1
        assert answer in (Status.RUNNING, Status.CANCELED)
        assert status_of(acme, call) == Status.CANCELED
        told = ["Rescheduled", "Canceled"] if answer == Status.CANCELED else ["Canceled"]
        assert story_of(acme, call) == [*BEGUN, *told]

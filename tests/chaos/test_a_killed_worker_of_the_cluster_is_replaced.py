"""P4, under django-q2. The worker in the engine's seat is killed; its chain goes on, in another worker."""

from __future__ import annotations

import os
import signal
import time

import pytest

from eventservice.tenants.directory import create_tenant
from tests.database_clock import promised
from tests.process_harness import (
    Stage,
    accept,
    call,
    lateness,
    say,
    seat_of,
    steady,
    until,
    until_all_have_ended,
)

PROMISED = promised(15.0)
WHOLE = pytest.param(10, id="whole", marks=pytest.mark.chaos)


@pytest.mark.parametrize("kills", [pytest.param(1, id="short"), WHOLE])
def test_due_calls_flow_again_after_the_engines_worker_was_killed(kills: int, stage: Stage) -> None:
    witness, tenant = stage.witness(), create_tenant("acme").tenant_id
    cluster = stage.cluster()
    for _ in range(kills):
        killed = until(lambda: seat_of("engine", cluster), "a worker has the engine's seat")
        first = accept([call(tenant, f"{witness.url}/ok")])
        until(lambda: set(first) <= witness.calls(), "calls flow")  # noqa: B023 (called at once)
        due = steady(tenant, f"{witness.url}/delay/0.2", per_second=10, seconds=12)
        time.sleep(1)
        os.kill(killed, signal.SIGKILL)
        until_all_have_ended()

        sent = witness.by_call()
        latest = max(lateness(due, sent).values())
        say(f"latest {latest:.1f} s")
        assert latest <= PROMISED
        assert all(len(sent[name]) <= 2 for name in due)
    stage.stop(cluster)


def test_events_are_published_again_after_the_dispatchers_worker_was_killed(stage: Stage) -> None:
    witness, tenant = stage.witness(), create_tenant("acme").tenant_id
    cluster = stage.cluster()
    killed = until(lambda: seat_of("dispatcher", cluster), "a worker has the dispatcher's seat")
    os.kill(killed, signal.SIGKILL)
    (name,) = accept([call(tenant, f"{witness.url}/ok")])
    until(
        lambda: f'"subject":"{name}"' in cluster.log and "ServiceCallSucceeded" in cluster.log,
        "it is published",
    )
    stage.stop(cluster)

"""P4, under django-q2. The worker in the engine's seat freezes and no other engine is there: it is replaced."""

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

PROMISED = promised(30.0)


@pytest.mark.chaos
def test_due_calls_flow_again_after_the_engines_worker_froze(stage: Stage) -> None:
    witness, tenant = stage.witness(), create_tenant("acme").tenant_id
    cluster = stage.cluster()
    frozen = until(lambda: seat_of("engine", cluster), "a worker has the engine's seat")
    first = accept([call(tenant, f"{witness.url}/ok")])
    until(lambda: set(first) <= witness.calls(), "calls flow")
    due = steady(tenant, f"{witness.url}/delay/0.2", per_second=5, seconds=10)
    time.sleep(1)
    os.kill(frozen, signal.SIGSTOP)
    try:
        until_all_have_ended()
    finally:
        os.kill(frozen, signal.SIGCONT)

    sent = witness.by_call()
    latest = max(lateness(due, sent).values())
    say(f"latest {latest:.1f} s")
    assert latest <= PROMISED
    assert all(len(sent[name]) <= 2 for name in due)
    stage.stop(cluster)

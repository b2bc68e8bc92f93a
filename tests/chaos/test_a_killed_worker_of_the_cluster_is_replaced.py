"""P4 under django-q2: the worker that plays the engine is killed, and its chain goes on in another worker."""

from __future__ import annotations

import os
import re
import signal
import time

import pytest

from eventservice.tenants.directory import create_tenant
from tests.database_clock import allow_for_load
from tests.process_harness import (
    ProcessHarness,
    build_call,
    compute_lateness,
    find_role_process,
    report,
    submit_calls,
    submit_steadily,
    wait_until,
    wait_until_all_ended,
)

PROMISED = allow_for_load(15.0)
WHOLE = pytest.param(10, id="whole", marks=pytest.mark.chaos)


@pytest.mark.parametrize("kills", [pytest.param(1, id="short"), WHOLE])
def test_due_calls_flow_again_after_the_engines_worker_was_killed(
    kills: int, harness: ProcessHarness
) -> None:
    target, tenant = harness.start_target(), create_tenant("acme").tenant_id
    cluster = harness.start_cluster()
    for _ in range(kills):
        killed = wait_until(lambda: find_role_process("engine", cluster), "a worker plays the engine")
        first = submit_calls([build_call(tenant, f"{target.url}/ok")])
        wait_until(lambda: set(first) <= target.list_call_ids(), "calls flow")  # noqa: B023 (called at once)
        due = submit_steadily(tenant, f"{target.url}/delay/0.2", per_second=10, seconds=12)
        time.sleep(1)
        os.kill(killed, signal.SIGKILL)
        wait_until_all_ended()

        sent = target.group_by_call()
        latest = max(compute_lateness(due, sent).values())
        report(f"latest {latest:.1f} s")
        assert latest <= PROMISED
        assert all(len(sent[name]) <= 2 for name in due)
    harness.stop(cluster)


def test_events_are_published_again_after_the_dispatchers_worker_was_killed(harness: ProcessHarness) -> None:
    target, tenant = harness.start_target(), create_tenant("acme").tenant_id
    cluster = harness.start_cluster()
    killed = wait_until(lambda: find_role_process("dispatcher", cluster), "a worker plays the dispatcher")
    os.kill(killed, signal.SIGKILL)
    (call_id,) = submit_calls([build_call(tenant, f"{target.url}/ok")])
    wait_until(
        lambda: re.search(rf"ServiceCallSucceeded .*call={call_id}", cluster.log),
        "it is published",
    )
    harness.stop(cluster)

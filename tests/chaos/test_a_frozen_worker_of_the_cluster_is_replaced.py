"""P4 under django-q2: the worker that plays the engine freezes, there is no other engine, and the worker is replaced."""

from __future__ import annotations

import os
import signal
import time

import pytest

from eventservice.kernel.processes import is_running
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

PROMISED = allow_for_load(30.0)


@pytest.mark.chaos
def test_due_calls_flow_again_after_the_engines_worker_froze(harness: ProcessHarness) -> None:
    target, tenant = harness.start_target(), create_tenant("acme").tenant_id
    cluster = harness.start_cluster()
    frozen = wait_until(lambda: find_role_process("engine", cluster), "a worker plays the engine")
    first = submit_calls([build_call(tenant, f"{target.url}/ok")])
    wait_until(lambda: set(first) <= target.list_call_ids(), "calls flow")
    due = submit_steadily(tenant, f"{target.url}/delay/0.2", per_second=5, seconds=10)
    time.sleep(1)
    os.kill(frozen, signal.SIGSTOP)
    wait_until_all_ended()
    wait_until(lambda: not is_running(frozen), "the frozen worker is killed")

    sent = target.group_by_call()
    latest = max(compute_lateness(due, sent).values())
    report(f"latest {latest:.1f} s")
    assert latest <= PROMISED
    assert all(len(sent[name]) <= 2 for name in due)
    harness.stop(cluster)

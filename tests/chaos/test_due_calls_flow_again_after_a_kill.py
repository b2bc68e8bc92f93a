"""P4: one of two engines is killed; the other soon makes what was due in its shards, and what it had begun."""

from __future__ import annotations

import time

from eventservice.tenants.directory import create_tenant
from tests.database_clock import allow_for_load
from tests.process_harness import (
    ProcessHarness,
    compute_lateness,
    report,
    submit_steadily,
    wait_until,
    wait_until_all_ended,
    wait_until_at_work,
)

PROMISED = allow_for_load(15.0)


def test_due_calls_flow_again_after_a_kill(harness: ProcessHarness) -> None:
    target = harness.start_target()
    killed, other = harness.start_engine(), harness.start_engine()
    wait_until_at_work(killed, other)
    due = submit_steadily(
        create_tenant("acme").tenant_id, f"{target.url}/delay/0.3", per_second=20, seconds=14
    )
    wait_until(lambda: target.count_requests() > 40, "calls flow")

    killed.kill()
    killed_at = time.time()
    wait_until_all_ended()
    harness.stop(other)

    sent = target.group_by_call()
    latest = max(compute_lateness(due, sent).values())
    repeats = [again.time - killed_at for attempts in sent.values() for again in attempts[1:]]
    report(
        f"latest {latest:.1f} s; {len(repeats)} repeats, the last {max(repeats, default=0):.1f} s after the kill"
    )
    assert latest <= PROMISED
    assert max(repeats, default=0) <= PROMISED
    assert all(len(attempts) <= 2 for attempts in sent.values())

"""P4 under django-q2: all processes of a cluster are killed at once, in the middle of their work."""

from __future__ import annotations

from eventservice.tenants.directory import create_tenant
from tests.database_clock import allow_for_load
from tests.process_harness import (
    ProcessHarness,
    compute_lateness,
    report,
    submit_steadily,
    wait_until,
    wait_until_all_ended,
)

PROMISED = allow_for_load(15.0)


def test_a_killed_cluster_is_continued_by_the_next(harness: ProcessHarness) -> None:
    target, tenant = harness.start_target(), create_tenant("acme").tenant_id
    killed = harness.start_cluster()
    due = submit_steadily(tenant, f"{target.url}/delay/0.3", per_second=10, seconds=14, start_in=3)
    wait_until(lambda: target.count_requests() > 10, "calls flow")

    killed.kill_group()
    following = harness.start_cluster()
    wait_until_all_ended()
    harness.stop(following)

    sent = target.group_by_call()
    latest = max(compute_lateness(due, sent).values())
    repeats = [attempts for attempts in sent.values() if len(attempts) > 1]
    report(f"latest {latest:.1f} s; {len(repeats)} repeats")
    assert latest <= PROMISED
    assert all([request.attempt for request in attempts] == [1, 2] for attempts in repeats)

"""P4: on SIGTERM another engine owns the shards at once, and the stopped engine finishes the attempts that it has begun."""

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
    wait_until_at_work,
)

# Shards that are not handed over wait for NODE_LEASE_SECONDS, which is more in any case.
MAX_GAP_SECONDS = allow_for_load(2.0)


def test_a_stopped_engine_hands_over_without_a_gap(harness: ProcessHarness) -> None:
    target = harness.start_target()
    stopped, other = harness.start_engine(), harness.start_engine()
    wait_until_at_work(stopped, other)
    tenant = create_tenant("acme").tenant_id
    # Some of these are in flight when it is stopped, and it must stay for them.
    due = submit_steadily(tenant, f"{target.url}/delay/5", per_second=20, seconds=0.5, start_in=0.0)
    due |= submit_steadily(tenant, f"{target.url}/delay/0.2", per_second=20, seconds=6)
    wait_until(lambda: target.count_requests() > 20, "calls flow")

    stopped.terminate()
    wait_until_all_ended()

    assert stopped.wait() == 0, stopped.log
    harness.stop(other)
    sent = target.group_by_call()
    latest = max(compute_lateness(due, sent).values())
    report(f"latest {latest:.2f} s")
    assert latest <= MAX_GAP_SECONDS
    assert all([request.attempt for request in sent[name]] == [1] for name in due)

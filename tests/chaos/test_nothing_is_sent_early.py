"""P5: under a steady load, no request arrives before its call is due by the database's clock."""

from __future__ import annotations

import time

import pytest
from django.db import connection

from eventservice.tenants.directory import create_tenant
from tests.database_clock import read_running_clock
from tests.process_harness import (
    ProcessHarness,
    compute_lateness,
    report,
    submit_steadily,
    wait_until_all_ended,
    wait_until_at_work,
)

WHOLE = pytest.param(100, 120, id="whole", marks=pytest.mark.chaos)


@pytest.mark.parametrize(("per_second", "seconds"), [pytest.param(20, 8, id="short"), WHOLE])
def test_nothing_is_sent_early(per_second: float, seconds: float, harness: ProcessHarness) -> None:
    target, tenant = harness.start_target(), create_tenant("acme").tenant_id
    engine = harness.start_engine()
    wait_until_at_work(engine)
    ahead = measure_clock_difference()

    due = submit_steadily(tenant, f"{target.url}/ok", per_second, seconds, start_in=1.5)
    wait_until_all_ended()
    harness.stop(engine)

    late = sorted(compute_lateness(due, target.group_by_call()).values())
    report(
        f"lateness: p50 {late[len(late) // 2] * 1000:.0f} ms, p99 {late[len(late) * 99 // 100] * 1000:.0f} ms"
    )
    assert late[0] >= -ahead


def measure_clock_difference() -> float:
    """Return how far the database's clock is ahead of the target's, at most. Both run on this machine."""
    before = time.time()
    database_time = read_running_clock().timestamp()
    after = time.time()
    # SQLite and MariaDB truncate their clock to its precision, so that it is a little behind.
    ahead = database_time - after
    assert database_time >= before - 0.002, f"the clock of {connection.vendor} differs from the target's"
    return max(0.0, ahead)

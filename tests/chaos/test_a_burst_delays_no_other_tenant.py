"""Fairness: thousands of calls of one tenant are due at once, and another tenant's calls are still made in time."""

from __future__ import annotations

from bisect import bisect
from dataclasses import replace
from datetime import timedelta

import pytest

from eventservice.tenants.directory import create_tenant
from orchestration.engine.capacity import EngineLimits
from tests.database_clock import allow_for_load, read_running_clock
from tests.process_harness import (
    ProcessHarness,
    build_call,
    compute_lateness,
    report,
    submit_calls,
    submit_steadily,
    wait_until_all_ended,
    wait_until_at_work,
)

MAX_DELAY_SECONDS = allow_for_load(1.0)
# However slow the machine is: what was in flight already when a call became due, and a batch or two beside it.
MAX_OVERTAKEN = 3 * EngineLimits().max_batch
WHOLE = pytest.param(10_000, id="whole", marks=pytest.mark.chaos)


@pytest.mark.parametrize("burst", [pytest.param(3_000, id="short"), WHOLE])
def test_a_burst_delays_no_other_tenant(burst: int, harness: ProcessHarness) -> None:
    target, quiet = harness.start_target(), harness.start_target()
    busy, other = create_tenant("busy").tenant_id, create_tenant("other").tenant_id
    engine = harness.start_engine()
    wait_until_at_work(engine)
    ahead = burst / 1000
    moment = read_running_clock() + timedelta(seconds=ahead)
    due = submit_steadily(other, f"{quiet.url}/ok", per_second=20, seconds=3, start_in=ahead)
    commands = [replace(build_call(busy, f"{target.url}/ok"), due_at=moment) for _ in range(burst)]
    for begin in range(0, burst, 1000):
        submit_calls(commands[begin : begin + 1000])
    wait_until_all_ended()
    harness.stop(engine)

    late = compute_lateness(due, quiet.group_by_call())
    worst = max(late.values())
    burst_sent = sorted(request.time for request in target.list_requests())
    behind = len(burst_sent) - bisect(burst_sent, min(due.values()))
    overtaken = max(bisect(burst_sent, at + late[name]) - bisect(burst_sent, at) for name, at in due.items())
    report(f"latest {worst * 1000:.0f} ms, while {behind} others were sent; overtaken by {overtaken}")
    assert behind > burst / 3, "the burst was over before it could delay anyone"
    assert overtaken <= MAX_OVERTAKEN
    assert worst <= MAX_DELAY_SECONDS
    assert len(target.list_call_ids()) == burst

"""Fairness: thousands of calls of one tenant are due at once, and another's call is still made in its time."""

from __future__ import annotations

from bisect import bisect
from dataclasses import replace
from datetime import timedelta

import pytest

from eventservice.tenants.directory import create_tenant
from orchestration.engine.capacity import EngineLimits
from tests.database_clock import promised, running_clock
from tests.process_harness import Stage, accept, at_work, call, lateness, say, steady, until_all_have_ended

MOST_DELAY = promised(1.0)
# However slow the machine: what was under way already when a call became due, and a batch or two beside it.
MOST_OVERTAKEN = 3 * EngineLimits().batch
WHOLE = pytest.param(10_000, id="whole", marks=pytest.mark.chaos)


@pytest.mark.parametrize("burst", [pytest.param(3_000, id="short"), WHOLE])
def test_a_burst_delays_no_other_tenant(burst: int, stage: Stage) -> None:
    witness, quiet = stage.witness(), stage.witness()
    busy, other = create_tenant("busy").tenant_id, create_tenant("other").tenant_id
    engine = stage.engine()
    at_work(engine)
    ahead = burst / 1000
    moment = running_clock() + timedelta(seconds=ahead)
    due = steady(other, f"{quiet.url}/ok", per_second=20, seconds=3, start_in=ahead)
    commands = [replace(call(busy, f"{witness.url}/ok"), due_at=moment) for _ in range(burst)]
    for begin in range(0, burst, 1000):
        accept(commands[begin : begin + 1000])
    until_all_have_ended()
    stage.stop(engine)

    late = lateness(due, quiet.by_call())
    worst = max(late.values())
    burst_sent = sorted(one.time for one in witness.sent())
    behind = len(burst_sent) - bisect(burst_sent, min(due.values()))
    overtaken = max(bisect(burst_sent, at + late[name]) - bisect(burst_sent, at) for name, at in due.items())
    say(f"latest {worst * 1000:.0f} ms, while {behind} others were sent; overtaken by {overtaken}")
    assert behind > burst / 3, "the burst was over before it could be in anybody's way"
    assert overtaken <= MOST_OVERTAKEN
    assert worst <= MOST_DELAY
    assert len(witness.calls()) == burst

"""Fairness: Tenant.max_in_flight bounds what one tenant has open, and the rest of its calls wait, not others'."""

from __future__ import annotations

from eventservice.tenants.directory import create_tenant
from eventservice.tenants.models import Tenant
from tests.database_clock import promised
from tests.process_harness import (
    Stage,
    accept,
    at_work,
    call,
    lateness,
    say,
    steady,
    until,
    until_all_have_ended,
)

CEILING = 10
CALLS = 60
MOST_DELAY = promised(1.0)


def test_a_tenant_at_its_limit_holds_back_its_own_calls_only(stage: Stage) -> None:
    bounded, free = stage.witness(), stage.witness()
    greedy, other = create_tenant("greedy").tenant_id, create_tenant("other").tenant_id
    Tenant.objects.filter(pk=greedy).update(max_in_flight=CEILING)
    engine = stage.engine()
    at_work(engine)
    mine = accept(call(greedy, f"{bounded.url}/delay/0.5") for _ in range(CALLS))
    until(lambda: bounded.count() >= CEILING, "the tenant is at its ceiling")

    due = steady(other, f"{free.url}/ok", per_second=20, seconds=2)
    until_all_have_ended()
    stage.stop(engine)

    worst = max(lateness(due, free.by_call()).values())
    say(f"latest {worst * 1000:.0f} ms; at most {bounded.most_connections()} open")
    assert worst <= MOST_DELAY
    assert bounded.most_connections() <= CEILING
    assert bounded.calls() == set(mine)

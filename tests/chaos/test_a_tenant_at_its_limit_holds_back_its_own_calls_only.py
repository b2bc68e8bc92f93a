"""Fairness: Tenant.max_in_flight bounds the open requests of a tenant. The rest of its calls wait, and no other tenant's."""

from __future__ import annotations

from eventservice.tenants.directory import create_tenant
from eventservice.tenants.models import Tenant
from tests.database_clock import allow_for_load
from tests.process_harness import (
    ProcessHarness,
    build_call,
    compute_lateness,
    report,
    submit_calls,
    submit_steadily,
    wait_until,
    wait_until_all_ended,
    wait_until_at_work,
)

LIMIT = 10
CALLS = 60
MAX_DELAY_SECONDS = allow_for_load(1.0)


def test_a_tenant_at_its_limit_holds_back_its_own_calls_only(harness: ProcessHarness) -> None:
    bounded, free = harness.start_target(), harness.start_target()
    greedy, other = create_tenant("greedy").tenant_id, create_tenant("other").tenant_id
    Tenant.objects.filter(pk=greedy).update(max_in_flight=LIMIT)
    engine = harness.start_engine()
    wait_until_at_work(engine)
    mine = submit_calls(build_call(greedy, f"{bounded.url}/delay/0.5") for _ in range(CALLS))
    wait_until(lambda: bounded.count_requests() >= LIMIT, "the tenant is at its limit")

    due = submit_steadily(other, f"{free.url}/ok", per_second=20, seconds=2)
    wait_until_all_ended()
    harness.stop(engine)

    worst = max(compute_lateness(due, free.group_by_call()).values())
    report(f"latest {worst * 1000:.0f} ms; at most {bounded.get_max_connections()} open")
    assert worst <= MAX_DELAY_SECONDS
    assert bounded.get_max_connections() <= LIMIT
    assert bounded.list_call_ids() == set(mine)

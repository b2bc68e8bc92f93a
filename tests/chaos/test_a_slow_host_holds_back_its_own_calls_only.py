"""Fairness: a host that does not respond holds back its own calls only.

Its open requests are bounded by the limit per host, or by its share of what its tenant may have in flight.
"""

from __future__ import annotations

import pytest

from eventservice.tenants.directory import create_tenant
from orchestration.engine.capacity import HOST_SHARE_FACTOR
from tests.database_clock import allow_for_load
from tests.process_harness import (
    ProcessHarness,
    build_call,
    compute_lateness,
    report,
    submit_calls,
    submit_steadily,
    wait_until,
    wait_until_at_work,
)

LIMIT = 42
CALLS = 500
MAX_DELAY_SECONDS = allow_for_load(1.0)


@pytest.mark.parametrize(
    ("per_host", "of_tenant"), [(LIMIT, CALLS), (CALLS, LIMIT + LIMIT // HOST_SHARE_FACTOR)]
)
def test_a_slow_host_holds_back_its_own_calls_only(
    harness: ProcessHarness, per_host: int, of_tenant: int
) -> None:
    slow, quick = harness.start_target("127.0.0.2"), harness.start_target()
    tenant = create_tenant("acme", max_in_flight=of_tenant).tenant_id
    engine = harness.start_engine(ENGINE_PER_HOST=str(per_host), SHUTDOWN_SECONDS="0")
    wait_until_at_work(engine)
    submit_calls(build_call(tenant, f"{slow.url}/delay/60") for _ in range(CALLS))
    wait_until(lambda: slow.count_requests() == LIMIT, "the slow host is at its limit")

    due = submit_steadily(tenant, f"{quick.url}/ok", per_second=20, seconds=3)
    wait_until(lambda: quick.list_call_ids() == due.keys(), "the calls of the other host are made")

    worst = max(compute_lateness(due, quick.group_by_call()).values())
    report(f"latest {worst * 1000:.0f} ms")
    assert worst <= MAX_DELAY_SECONDS
    assert slow.count_requests() == LIMIT
    assert slow.get_max_connections() == LIMIT + 1  # and the one that asks
    harness.stop(engine)

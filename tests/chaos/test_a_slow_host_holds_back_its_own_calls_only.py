"""Fairness: a host that does not answer has its ceiling's worth of requests open, or its share of what its tenant may
have, and everybody else goes on."""

from __future__ import annotations

import pytest

from eventservice.tenants.directory import create_tenant
from orchestration.engine.capacity import HOST_SHARE_FACTOR
from tests.database_clock import promised
from tests.process_harness import Stage, accept, at_work, call, lateness, say, steady, until

CEILING = 42
CALLS = 500
MOST_DELAY = promised(1.0)


@pytest.mark.parametrize(
    ("per_host", "of_tenant"), [(CEILING, CALLS), (CALLS, CEILING + CEILING // HOST_SHARE_FACTOR)]
)
def test_a_slow_host_holds_back_its_own_calls_only(stage: Stage, per_host: int, of_tenant: int) -> None:
    slow, quick = stage.witness("127.0.0.2"), stage.witness()
    tenant = create_tenant("acme", max_in_flight=of_tenant).tenant_id
    engine = stage.engine(ENGINE_PER_HOST=str(per_host), SHUTDOWN_SECONDS="0")
    at_work(engine)
    accept(call(tenant, f"{slow.url}/delay/60") for _ in range(CALLS))
    until(lambda: slow.count() == CEILING, "the slow host is at its ceiling")

    due = steady(tenant, f"{quick.url}/ok", per_second=20, seconds=3)
    until(lambda: quick.calls() == due.keys(), "the others' calls are made")

    worst = max(lateness(due, quick.by_call()).values())
    say(f"latest {worst * 1000:.0f} ms")
    assert worst <= MOST_DELAY
    assert slow.count() == CEILING
    assert slow.most_connections() == CEILING + 1  # by which it was asked
    stage.stop(engine)

"""P2, P3: the database falls silent for one engine alone, its lease ends, and it is declared dead.

What it holds when the database answers again is recorded for the calls that nobody has resolved in the meantime. The
outcomes of all others are late results. The target is the witness of what was sent.
"""

from __future__ import annotations

from typing import Any

import pytest
from django.conf import settings

from eventservice.tenants.directory import create_tenant
from execution.models import HttpExecution
from orchestration.models import ServiceCall
from orchestration.states import Delivery, Status
from tests.process_harness import (
    ProcessHarness,
    Program,
    build_call,
    find_node,
    submit_calls,
    wait_until,
    wait_until_all_ended,
    wait_until_at_work,
)
from tests.tcp_proxy import TcpProxy, Trouble
from timers.membership import reap_dead_node
from timers.models import Node

SHORT = {
    "NODE_LEASE_SECONDS": "2",
    "DB_CONNECT_SECONDS": "2",
    "DB_LOCK_SECONDS": "1",
    "DB_STATEMENT_SECONDS": "2",
}
WAITS = [
    pytest.param(SHORT, 1.0, id="short"),
    pytest.param({}, settings.NODE_LEASE_SECONDS / 2, id="whole", marks=pytest.mark.chaos),
]
CALLS_EACH = 5


def start_calls(target: Any, tenant: Any, seconds: float) -> list[str]:
    calls = submit_calls(
        build_call(tenant, f"{target.url}/delay/{seconds}", delivery=delivery)
        for delivery in Delivery
        for _ in range(CALLS_EACH)
    )
    wait_until(lambda: target.list_call_ids() == set(calls), "all attempts are in flight")
    return calls


def wait_until_fenced(engine: Program, node: Any) -> None:
    wait_until(lambda: "node_fenced" in engine.log, "it notices that it was declared dead")
    wait_until(lambda: find_node(engine) not in (None, node), "it has joined again")


@pytest.mark.parametrize(("waits", "delay"), WAITS)
@pytest.mark.parametrize("trouble", [Trouble.SWALLOW, Trouble.HOLD])
def test_results_are_recorded_if_nobody_has_resolved_the_calls(
    trouble: Trouble, waits: dict[str, str], delay: float, harness: ProcessHarness, proxy: TcpProxy
) -> None:
    target, tenant = harness.start_target(), create_tenant("acme").tenant_id
    engine = harness.start_engine(DATABASE_URL=proxy.database_url, **waits)
    wait_until_at_work(engine)
    calls = start_calls(target, tenant, delay)
    node = find_node(engine)
    assert node
    with proxy.make_trouble(trouble, 2 * delay):
        # Only the node is removed, as by an engine that is killed before it has resolved the calls.
        assert wait_until(reap_dead_node, "its lease has ended") == node
    wait_until_fenced(engine, node)
    wait_until_all_ended()
    harness.stop(engine)

    assert {name: len(sent) for name, sent in target.group_by_call().items()} == dict.fromkeys(calls, 1)
    outcomes = ServiceCall.objects.for_tenant(tenant).values_list("status", "attempt")
    assert set(outcomes) == {(Status.SUCCEEDED, 1)}


@pytest.mark.parametrize(("waits", "delay"), WAITS)
@pytest.mark.parametrize("trouble", [Trouble.SWALLOW, Trouble.HOLD])
def test_results_are_late_if_another_engine_has_resolved_the_calls(
    trouble: Trouble, waits: dict[str, str], delay: float, harness: ProcessHarness, proxy: TcpProxy
) -> None:
    target, tenant = harness.start_target(), create_tenant("acme").tenant_id
    engine = harness.start_engine(DATABASE_URL=proxy.database_url, **waits)
    wait_until_at_work(engine)
    calls = start_calls(target, tenant, delay)
    node = find_node(engine)
    assert node
    with proxy.make_trouble(trouble, 2 * delay):
        other = harness.start_engine(**waits)
        wait_until(lambda: not Node.objects.filter(pk=node).exists(), "it is declared dead")
        wait_until_all_ended()
    before = list(ServiceCall.objects.for_tenant(tenant).order_by("pk").values())
    wait_until_fenced(engine, node)

    first = HttpExecution.objects.for_tenant(tenant).filter(node=node)
    wait_until(lambda: first.filter(response_status=200).count() == len(calls), "its results are in the log")
    harness.stop(engine, other)
    assert list(ServiceCall.objects.for_tenant(tenant).order_by("pk").values()) == before
    statuses = ServiceCall.objects.for_tenant(tenant).values_list("delivery", "status", "attempt")
    assert set(statuses) == {
        (Delivery.AT_LEAST_ONCE, Status.SUCCEEDED, 2),
        (Delivery.AT_MOST_ONCE, Status.FAILED, 1),
    }

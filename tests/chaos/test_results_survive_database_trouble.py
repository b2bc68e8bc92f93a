"""P2, P4: trouble between the cluster and its database server repeats no call that was answered, and fails none.

The cluster reaches the server through a proxy, which refuses, resets, swallows, holds or slows down its bytes, at the
default settings and for longer than any wait. The target is the witness of what was sent.
"""

from __future__ import annotations

import time

import pytest
from django.db import connection

from eventservice.tenants.directory import create_tenant
from orchestration.models import ServiceCall
from orchestration.states import Delivery, Status
from tests.database_clock import allow_for_load
from tests.process_harness import (
    ProcessHarness,
    build_call,
    find_role_process,
    report,
    submit_calls,
    wait_until,
    wait_until_all_ended,
)
from tests.tcp_proxy import TcpProxy, Trouble

# Due calls flow again this soon after the trouble.
RECOVERY_SECONDS = allow_for_load(15.0)
# Answers come before the trouble, at any moment of it, and after it.
DELAYS = [0.5, 2, 4, 6, 8, 10, 12, 15, 18, 21, 24]

pytestmark = pytest.mark.chaos


@pytest.mark.parametrize("seconds", [20, 40, 60])
@pytest.mark.parametrize("trouble", [trouble for trouble in Trouble if trouble is not Trouble.NONE])
def test_a_cluster_keeps_the_results_it_has(
    trouble: Trouble, seconds: float, harness: ProcessHarness, proxy: TcpProxy
) -> None:
    target, tenant = harness.start_target(), create_tenant("acme").tenant_id
    cluster = harness.start_cluster(DATABASE_URL=proxy.database_url)
    wait_until(lambda: find_role_process("engine", cluster), "a worker plays the engine")
    accepted = submit_calls(
        build_call(tenant, f"{target.url}/delay/{delay}", delivery=delivery)
        for delay in DELAYS
        for delivery in Delivery
        for _ in range(3)
    )
    wait_until(lambda: target.list_call_ids() == set(accepted), "all attempts are in flight")

    with proxy.make_trouble(trouble, seconds):
        due_meanwhile = submit_calls(build_call(tenant, f"{target.url}/ok") for _ in range(5))
    ended_at = time.time()
    wait_until_all_ended()
    wait_until(lambda: target.list_call_ids() == {*accepted, *due_meanwhile}, "the target has recorded all")

    sent = target.group_by_call()
    repeated = [name for name in accepted if len(sent[name]) > 1]
    failed = ServiceCall.objects.for_tenant(tenant).exclude(status=Status.SUCCEEDED).count()
    recovered_in = max(min(request.time for request in sent[name]) for name in due_meanwhile) - ended_at
    report(
        f"{connection.vendor}, {trouble.value} for {seconds} s: {len(repeated)} of {len(accepted)} sent again,"
        f" {failed} failed, due calls flow after {recovered_in:.1f} s"
    )
    assert (repeated, failed) == ([], 0)
    assert recovered_in <= RECOVERY_SECONDS
    harness.stop(cluster)


@pytest.mark.parametrize("trouble", [Trouble.RESET, Trouble.SWALLOW, Trouble.HOLD])
def test_a_cluster_that_is_at_work_sends_each_call_once(
    trouble: Trouble, harness: ProcessHarness, proxy: TcpProxy
) -> None:
    """Transactions that start and finish calls are under way when the trouble begins, and when it ends."""
    target, tenant = harness.start_target(), create_tenant("acme").tenant_id
    cluster = harness.start_cluster(DATABASE_URL=proxy.database_url)
    wait_until(lambda: find_role_process("engine", cluster), "a worker plays the engine")
    accepted = submit_calls(
        build_call(
            tenant,
            f"{target.url}/delay/{number % 5 / 5}",
            due_in=1 + number / 40,
            delivery=Delivery.AT_MOST_ONCE,
        )
        for number in range(40 * 40)
    )
    wait_until(lambda: target.count_requests() > 100, "calls flow")
    for seconds in (0.5, 2, 20):
        with proxy.make_trouble(trouble, seconds):
            pass
        time.sleep(1.5)
    wait_until_all_ended()
    harness.stop(cluster)

    sent = target.group_by_call()
    repeated = [name for name in accepted if len(sent[name]) > 1]
    failed = ServiceCall.objects.for_tenant(tenant).exclude(status=Status.SUCCEEDED).count()
    report(f"{connection.vendor}, {trouble.value}: {len(repeated)} sent again, {failed} failed")
    assert (repeated, failed) == ([], 0)
    assert sent.keys() == set(accepted)

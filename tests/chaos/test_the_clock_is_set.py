"""The database's clock is set back or forward: due calls go on within seconds, and none is sent twice."""

from __future__ import annotations

import time

import pytest

from eventservice.tenants.directory import create_tenant
from orchestration.models import ServiceCall
from orchestration.states import Delivery, Status
from tests.database_clock import allow_for_load, set_clock_back
from tests.process_harness import (
    ProcessHarness,
    Program,
    build_call,
    compute_lateness,
    report,
    submit_calls,
    submit_steadily,
    wait_until,
    wait_until_all_ended,
)

# A minute is what the longest leases take; more cannot be told from an owner that is alive.
PROMISED = allow_for_load(30.0)
WORKERS = 2

pytestmark = pytest.mark.chaos


def count_settled(clusters: list[Program]) -> int:
    return sum(each.log.count(event) for each in clusters for event in ("role_acquired", "standing_by"))


@pytest.mark.parametrize(
    ("names", "seconds"),
    [
        (["one"], 60),
        (["one"], 3600),
        (["one"], -60),
        (["one", "one"], 60),
        (["one", "one"], -60),
        (["one", "two"], 3600),
        (["one", "two"], -60),
    ],
)
def test_calls_go_on_and_none_is_sent_twice(names: list[str], seconds: int, harness: ProcessHarness) -> None:
    target, tenant = harness.start_target(), create_tenant("acme").tenant_id
    clusters = [harness.start_cluster(CLUSTER_NAME=name) for name in names]
    # A process that has not seen the leases before cannot notice that the clock was set.
    wait_until(
        lambda: count_settled(clusters) == WORKERS * len(clusters), "each worker has a role or stands by"
    )
    first = submit_calls([build_call(tenant, f"{target.url}/ok") for _ in range(20)])
    wait_until(lambda: set(first) <= target.list_call_ids(), "calls flow")
    in_flight = submit_calls(
        build_call(tenant, f"{target.url}/delay/20", delivery=delivery)
        for delivery in Delivery
        for _ in range(20)
    )
    wait_until(lambda: set(in_flight) <= target.list_call_ids(), "all attempts are in flight")
    set_clock_back(seconds)
    due = submit_steadily(tenant, f"{target.url}/ok", per_second=5, seconds=20)
    wait_until_all_ended()
    harness.stop(*clusters)

    outcomes = ServiceCall.objects.for_tenant(tenant).values_list("status", "attempt")
    assert set(outcomes) == {(Status.SUCCEEDED, 1)}
    sent = target.group_by_call()
    late = compute_lateness(due, sent).values()
    report(f"lateness: {min(late):.1f} to {max(late):.1f} s")
    assert min(late) >= -0.01
    assert max(late) <= PROMISED
    assert {len(requests) for requests in sent.values()} == {1}


@pytest.mark.parametrize("seconds", [60, 3600])
def test_a_cluster_takes_over_what_died_before_the_clock_was_set_back(
    seconds: int, harness: ProcessHarness
) -> None:
    target, tenant = harness.start_target(), create_tenant("acme").tenant_id
    killed = harness.start_cluster()
    first = submit_calls([build_call(tenant, f"{target.url}/ok")])
    wait_until(lambda: set(first) <= target.list_call_ids(), "calls flow")
    killed.kill_group()
    set_clock_back(seconds)
    due = submit_steadily(tenant, f"{target.url}/ok", per_second=5, seconds=2)
    started_at = time.monotonic()
    cluster = harness.start_cluster()
    wait_until_all_ended()
    report(f"after {time.monotonic() - started_at:.1f} s")
    harness.stop(cluster)
    assert max(compute_lateness(due, target.group_by_call()).values()) <= PROMISED

"""Two clusters of one name share one queue. The second takes over when the first is gone, and disturbs it in nothing before."""

from __future__ import annotations

import pytest
from django.db.models import F
from django_q.models import OrmQ, Schedule

from eventservice.runtime.models import Slot
from eventservice.tenants.directory import create_tenant
from orchestration.models import ServiceCall
from orchestration.states import Delivery, Status
from tests.database_clock import allow_for_load
from tests.process_harness import (
    ProcessHarness,
    Program,
    build_call,
    compute_lateness,
    find_role_process,
    report,
    submit_calls,
    submit_steadily,
    wait_until,
    wait_until_all_ended,
)

pytestmark = pytest.mark.chaos

# Several times as long as a slice, and as the leases of roles and nodes.
SECONDS = 60.0
MAX_GAP = allow_for_load(2.0)
MAX_GAP_OF_TAKEOVER = allow_for_load(15.0)
ROLES = ("engine", "dispatcher")
# The sentinel, two workers, pusher and monitor.
PROCESSES = 5


def start_two(harness: ProcessHarness) -> tuple[Program, Program]:
    owner = harness.start_cluster(CLUSTER_NAME="one")
    for role in ROLES:
        wait_until(lambda: find_role_process(role, owner), f"a worker is the {role}")  # noqa: B023
    standby = harness.start_cluster(CLUSTER_NAME="one")
    wait_until(lambda: len(standby.list_children()) >= PROCESSES, "the standby has all its processes")
    return owner, standby


def test_the_owner_keeps_its_roles_and_its_attempts(harness: ProcessHarness) -> None:
    target, tenant = harness.start_target(), create_tenant("acme").tenant_id
    owner, standby = start_two(harness)
    processes = [find_role_process(role, owner) for role in ROLES]
    in_flight = submit_calls(
        build_call(tenant, f"{target.url}/delay/20", delivery=delivery)
        for delivery in Delivery
        for _ in range(20)
    )
    due = submit_steadily(tenant, f"{target.url}/ok", per_second=5, seconds=SECONDS)
    wait_until_all_ended()

    assert [find_role_process(role, owner) for role in ROLES] == processes
    assert [find_role_process(role, standby) for role in ROLES] == [None, None]
    harness.stop(owner, standby)
    outcomes = ServiceCall.objects.for_tenant(tenant).values_list("status", "attempt")
    assert set(outcomes) == {(Status.SUCCEEDED, 1)}
    sent = target.group_by_call()
    assert {call: len(requests) for call, requests in sent.items()} == dict.fromkeys([*in_flight, *due], 1)
    late = max(compute_lateness(due, sent).values())
    report(f"lateness: {late:.2f} s")
    assert late <= MAX_GAP


@pytest.mark.parametrize("slices", ["queued", "lost"])
def test_the_standby_takes_over_whether_it_has_slices_or_not(slices: str, harness: ProcessHarness) -> None:
    target, tenant = harness.start_target(), create_tenant("acme").tenant_id
    owner, standby = start_two(harness)
    if slices == "lost":
        Schedule.objects.all().delete()
        Slot.objects.update(ticket=F("ticket") + 1)
        wait_until(lambda: not OrmQ.objects.exists(), "no slice is left")
    due = submit_steadily(tenant, f"{target.url}/ok", per_second=5, seconds=5)
    owner.kill_group()
    wait_until_all_ended()
    harness.stop(standby)
    late = max(compute_lateness(due, target.group_by_call()).values())
    report(f"after {late:.1f} s")
    assert late <= MAX_GAP_OF_TAKEOVER

"""P1 to P3 on several machines: four clusters and two web processes on one database are killed, frozen and stopped.

The target and the receiver of the webhooks are the witnesses. `make cluster` runs this on each database server.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from django.db import connection
from django.db.models import Count

from eventservice.db.leases import Lease
from eventservice.tenants.directory import create_tenant, declare_namespace
from eventservice.tenants.keys import create_key
from orchestration.models import ServiceCall
from outbox.models import DeliveryState, OutboxEvent, OutboxPartition, WebhookDelivery
from outbox.publishers.webhook.endpoints import create_endpoint
from tests.chaos.conftest import FIGURES
from tests.chaos.machines import OF_CLUSTERS, OF_WEB, Machine, OwnershipWatch, Users, get_due_time
from tests.chaos.promises import (
    assert_event_sequences_are_complete,
    assert_sent_as_promised,
    filter_unpublished,
)
from tests.chaos.storm import draw_call
from tests.contracts.test_publishers import list_first_sequences
from tests.databases import get_database_name
from tests.outbox.receiver import Receiver, run_receiver
from tests.process_harness import (
    ProcessHarness,
    compute_lateness,
    find_free_address,
    is_serving,
    wait_until,
    wait_until_all_ended,
    wait_until_none_left,
)
from timers.membership import list_live_node_ids
from timers.models import NodeRole, TimerShard

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.skipif(connection.vendor == "sqlite", reason="machines cannot share a file"),
]

SECONDS = float(os.environ.get("CHAOS_SECONDS") or 150)
SECONDS_PER_CALL = 0.1
CLUSTERS = 4
WEB_MACHINES = 2
# Enough for each engine to own some.
SHARDS = 64
NAMESPACE = "wide"
SETTINGS = {
    "PUBLISHERS": "webhook",
    "NODE_LEASE_SECONDS": "3",
    "DB_IDLE_TRANSACTION_SECONDS": "3",
    "DB_LOCK_SECONDS": "1",
}
# A delivery whose sender was killed is sent again when its lease has ended, after a minute.
MAX_STANDSTILL_SECONDS = 150.0


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with run_receiver() as receiver:
        yield receiver


class Machines:
    """The machines, of which any may be disturbed at any time."""

    def __init__(self, harness: ProcessHarness, rng: random.Random) -> None:
        addresses = [find_free_address() for _ in range(WEB_MACHINES)]
        self.urls = [f"http://{address}" for address in addresses]
        self.clusters = [
            Machine(
                partial(harness.start_cluster, CLUSTER_NAME=f"machine-{number}", **SETTINGS),
                OF_CLUSTERS,
            )
            for number in range(CLUSTERS)
        ]
        self.webs = [
            Machine(partial(harness.start_web, address, "--workers", "2"), OF_WEB) for address in addresses
        ]
        self.disturbances: Counter[str] = Counter()
        self.watches = [OwnershipWatch(TimerShard), OwnershipWatch(OutboxPartition)]
        self._rng = rng
        self._disturb_at = 0.0

    def wait_until_at_work(self) -> None:
        """End all disturbances, and wait until all machines work. One may end only now, of an earlier kill."""

        def are_at_work() -> bool:
            for machine in [*self.clusters, *self.webs]:
                machine.recover()
            return is_shared_among(len(self.clusters)) and all(map(is_serving, self.urls))

        wait_until(are_at_work, "all machines work")

    def tick(self) -> None:
        """Let machines recover that have been disturbed long enough, and disturb another if it is time to."""
        machines = [*self.clusters, *self.webs]
        for machine in machines:
            machine.recover_if_due()
        calm = [machine for machine in machines if not machine.is_disturbed]
        if calm and time.monotonic() > self._disturb_at:
            self.disturbances[self._rng.choice(calm).disturb(self._rng)] += 1
            self._disturb_at = time.monotonic() + self._rng.uniform(0.5, 3.0)
        for watch in self.watches:
            watch.look()

    def stop(self) -> None:
        """Stop one after the other. Those that are left share the work of each that goes."""
        for left in reversed(range(len(self.clusters))):
            wait_until(lambda: is_shared_among(left + 1), f"{left + 1} clusters share the work")  # noqa: B023
            self.clusters[left].stop()
        for web in self.webs:
            web.stop()


def is_shared_among(clusters: int) -> bool:
    """Return whether so many engines own all shards, and so many dispatchers all partitions."""
    return is_shared(TimerShard, NodeRole.ENGINE, clusters) and is_shared(
        OutboxPartition, NodeRole.DISPATCHER, clusters
    )


def is_shared(model: type[Lease], role: NodeRole, nodes: int) -> bool:
    live = list_live_node_ids(role)
    owners = set(model._default_manager.values_list("owner_id", flat=True))
    # Sixteen partitions may leave one of four dispatchers without any, by chance.
    return len(live) == nodes and owners <= live and (model is OutboxPartition or owners == live)


def test_calls_and_events_survive_machines_that_come_and_go(
    harness: ProcessHarness,
    rng: random.Random,
    receiver: Receiver,
    record_property: Callable[[str, object], None],
) -> None:
    target = harness.start_target()
    tenants = [create_tenant(name).tenant_id for name in ("acme", "globex", "initech")]
    for tenant_id in tenants:
        declare_namespace(tenant_id, NAMESPACE, SHARDS)
        _, receiver.secrets[f"/{tenant_id}"] = create_endpoint(tenant_id, receiver.build_url(f"/{tenant_id}"))
    machines = Machines(harness, rng)
    machines.wait_until_at_work()
    api_keys = {tenant_id: create_key(tenant_id, ["read", "write"])[1] for tenant_id in tenants}
    users = Users(machines.urls, api_keys, NAMESPACE)

    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        machines.tick()
        if not users.are_busy:
            users.submit(draw_call(rng, tenants, target.url))
        time.sleep(SECONDS_PER_CALL)
    recovering = time.monotonic()
    machines.wait_until_at_work()
    submitted = users.close()
    wait_until_all_ended()
    recovered_in = time.monotonic() - recovering
    wait_until_none_left(filter_unpublished().count, "unpublished events")
    wait_until_none_left(count_pending_deliveries, "pending deliveries", MAX_STANDSTILL_SECONDS)

    machines.stop()
    sent = target.group_by_call()
    rows = {str(row.service_call_id): row for row in ServiceCall.across_tenants.all()}
    assert rows.keys() == users.accepted.keys()
    assert len(rows) == submitted
    assert sent.keys() <= rows.keys()
    due = {call: get_due_time(users.accepted[call]).timestamp() for call in sent}
    late = sorted(compute_lateness(due, sent).values())
    moves = [watch.moves for watch in machines.watches]
    record_property(
        FIGURES,
        f"{get_database_name()}: {len(rows):,} calls, accepted after {users.repeats:,} repeated submissions; "
        f"{machines.disturbances.total()} disturbances {dict(sorted(machines.disturbances.items()))}; "
        f"{sum(row.interruptions for row in rows.values())} interrupted attempts; "
        f"{sum(map(len, sent.values())):,} requests, {late[len(late) // 2]:.2f} s after the time asked for in the median and "
        f"{late[-1]:.1f} s at most, with the time until a web process accepted the call; {len(receiver.accepted):,} webhooks; {moves[0]:,} shards and {moves[1]:,} partitions "
        f"changed their owner; all calls had ended {recovered_in:.0f} s after the last disturbance",
    )
    for call_id, command in users.accepted.items():
        # Not those of the attempt log: there, the late result of a frozen machine replaces an interruption.
        interruptions = rows[call_id].interruptions
        assert_sent_as_promised(command, rows[call_id], sent[call_id], interruptions)
    assert late[0] >= 0, "sent early"
    assert_event_sequences_are_complete()
    assert_delivered_in_order(receiver)


def count_pending_deliveries() -> int:
    return WebhookDelivery.across_tenants.filter(state=DeliveryState.PENDING).count()


def assert_delivered_in_order(receiver: Receiver) -> None:
    """Check that the receiver has got all events of each call in order, and repeats under the same id only."""
    events = OutboxEvent.across_tenants.values_list("aggregate_id").annotate(Count("id"))
    expected = {str(call): list(range(1, count + 1)) for call, count in events}
    assert list_first_sequences(receiver.accepted) == expected
    ids = {(event["subject"], event["sequence"], event["id"]) for event in receiver.accepted}
    assert len(ids) == sum(map(len, expected.values()))

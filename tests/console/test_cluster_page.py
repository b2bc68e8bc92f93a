"""The cluster: which nodes run, who owns what, and what is wrong."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.test import Client

from eventservice.console.cluster import format_ranges
from eventservice.kernel.ids import new_id
from eventservice.runtime.models import Slot
from eventservice.tenants.directory import declare_namespace
from eventservice.tenants.models import Tenant
from orchestration.models import TimerMark
from outbox.models import OutboxPartition
from tests.factories import OutboxEventFactory, ServiceCallFactory, TimerFactory
from timers.models import Node, NodeRole, ShardSize, TimerShard
from timers.shard_sizes import MAX_ADVISED_TIMERS

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]

LEASE = timedelta(seconds=8)


def create_node(role: NodeRole, now: datetime, lease: timedelta = LEASE, **given: Any) -> Node:
    values = {"hostname": "engine-1", "process_id": 4711, "started_at": now - timedelta(hours=1)}
    return Node.objects.create(owner_id=new_id(), role=role, lease_until=now + lease, **{**values, **given})


@pytest.fixture
def healthy(at_noon: datetime) -> Node:
    engine = create_node(NodeRole.ENGINE, at_noon, in_flight=7)
    dispatcher = create_node(NodeRole.DISPATCHER, at_noon)
    until = at_noon + timedelta(minutes=1)
    TimerShard.objects.bulk_create(
        TimerShard(shard_id=n, version=3, owner_id=engine.owner_id, lease_until=until) for n in range(60)
    )
    OutboxPartition.objects.bulk_create(
        OutboxPartition(partition=n, owner_id=dispatcher.owner_id, lease_until=until) for n in range(16)
    )
    return engine


def create_timer(tenant: Tenant, shard_id: int, due_at: datetime) -> None:
    call = ServiceCallFactory(tenant_id=tenant.tenant_id)
    TimerFactory(
        tenant_id=call.tenant_id, service_call_id=call.service_call_id, shard_id=shard_id, due_at=due_at
    )


def get_page(client: Client, path: str = "/cluster/") -> str:
    response = client.get(path)
    assert response.status_code == 200
    return response.content.decode()


def test_a_system_in_which_nothing_runs_says_what_to_start(viewer: Client) -> None:
    page = get_page(viewer)
    assert "No engine is running" in page
    assert "No dispatcher is running" in page
    assert "<code>manage.py cluster</code>" in page
    assert "The cluster is healthy" not in page


@pytest.mark.usefixtures("healthy")
def test_a_healthy_system_is_reported_as_healthy(viewer: Client) -> None:
    page = get_page(viewer)
    assert "The cluster is healthy" in page
    assert "engine-1" in page
    assert "4711" in page
    assert "60" in page


def test_a_silent_node_is_named(viewer: Client, healthy: Node, at_noon: datetime) -> None:
    create_node(NodeRole.ENGINE, at_noon, -LEASE, hostname="engine-2", process_id=99)
    page = get_page(viewer)
    assert "The engine on engine-2 (process 99) has stopped sending heartbeats." in page
    assert "Another engine takes over its shards and calls within seconds." in page


def test_a_silent_engine_without_a_replacement_is_reported(viewer: Client, at_noon: datetime) -> None:
    create_node(NodeRole.ENGINE, at_noon, -LEASE)
    page = get_page(viewer)
    assert "No engine is running" in page
    assert "No other engine" not in page
    assert "“No engine is running” says what to do." in page
    Node.objects.update(role=NodeRole.DISPATCHER)
    assert "“No dispatcher is running” says what to do." in get_page(viewer)


@pytest.mark.usefixtures("healthy")
def test_the_cluster_is_not_called_healthy_while_events_are_parked(
    viewer: Client, tenant: Tenant, at_noon: datetime
) -> None:
    OutboxEventFactory(tenant_id=tenant.pk, parked_at=at_noon, attempts=3)
    page = get_page(viewer)
    assert "1 event is parked" in page
    assert "The cluster is healthy" not in page


@pytest.mark.usefixtures("healthy")
def test_the_cluster_is_not_called_healthy_while_a_timer_store_is_not_written(
    viewer: Client, at_noon: datetime
) -> None:
    mark = TimerMark.objects.create(
        tenant_id=new_id(), service_call_id=new_id(), take=1, store="fleet", namespace="alerts", timer_id="due", shard_id=0,
        execute_at=at_noon, failures=0, interruptions=0, next_seq=1, marked_at=at_noon - timedelta(seconds=20),
    )  # fmt: skip
    assert "The cluster is healthy" in get_page(viewer)
    mark.marked_at = at_noon - timedelta(seconds=40)
    mark.save()
    page = get_page(viewer)
    assert "1 ended attempt not written to the timer store fleet, the oldest for 40 s" in page
    assert "The cluster is healthy" not in page


@pytest.mark.usefixtures("healthy")
def test_shards_without_an_owner_are_counted_and_can_be_listed(viewer: Client) -> None:
    TimerShard.objects.filter(shard_id__in=[4, 55]).update(owner_id=None, lease_until=None)
    assert "2 of 60 shards have no owner" in get_page(viewer)
    response = viewer.get("/cluster/?shards=unowned")
    assert [row["shard"].shard_id for row in response.context["rows"]] == [4, 55]


def test_shards_of_a_silent_node_are_not_called_owned(
    viewer: Client, healthy: Node, at_noon: datetime
) -> None:
    assert "all owned" in get_page(viewer)
    silent = create_node(NodeRole.ENGINE, at_noon, -LEASE)
    TimerShard.objects.filter(shard_id__lt=5).update(owner_id=silent.owner_id)
    page = get_page(viewer)
    assert "5 owned by dead nodes" in page
    assert "all owned" not in page


@pytest.mark.usefixtures("healthy")
def test_overdue_timers_are_counted_by_shard(viewer: Client, tenant: Tenant, at_noon: datetime) -> None:
    for shard_id, late in ((7, 90), (7, 30), (9, 20), (11, -60)):
        create_timer(tenant, shard_id, at_noon - timedelta(seconds=late))
    response = viewer.get("/cluster/?shards=overdue")
    rows = {row["shard"].shard_id: row["overdue"] for row in response.context["rows"]}
    assert rows == {7: 2, 9: 1}
    assert response.context["backlog"].overdue == 3
    assert "3 calls are overdue, the oldest by 1 m." in response.content.decode()


def test_shards_and_partitions_are_folded_by_owner(viewer: Client, healthy: Node) -> None:
    OutboxPartition.objects.filter(partition__in=[3, 4, 9]).update(owner_id=None, lease_until=None)
    response = viewer.get("/cluster/")
    assert response.context["rows"] == response.context["partitions"] == []
    (shards,) = response.context["owners"]
    assert (shards[0].owner_id, shards[0].shards) == (healthy.owner_id, 60)
    ranges = [group["ranges"] for group in response.context["partition_groups"]]
    assert ranges == ["3–4, 9", "0–2, 5–8, 10–15"]
    assert len(viewer.get("/cluster/?partitions=all").context["partitions"]) == 16


def test_numbers_are_shortened_to_ranges() -> None:
    assert format_ranges([5, 1, 2, 3, 7, 8]) == "1–3, 5, 7–8"
    assert format_ranges([]) == ""


@pytest.mark.usefixtures("healthy")
def test_shards_are_paged(viewer: Client) -> None:
    first = viewer.get("/cluster/?shards=all")
    assert len(first.context["rows"]) == 50
    assert first.context["next_after"] == 49
    rest = viewer.get("/cluster/?shards=all&after=49")
    assert [row["shard"].shard_id for row in rest.context["rows"]] == list(range(50, 60))
    assert rest.context["next_after"] is None


@pytest.mark.usefixtures("healthy")
def test_namespaces_show_their_shards(viewer: Client, tenant: Tenant) -> None:
    declare_namespace(tenant.tenant_id, "invoices", 64)
    page = get_page(viewer)
    assert f"/tenants/{tenant.tenant_id}/" in page
    assert "The largest has 64 shards" in page


@pytest.mark.usefixtures("healthy")
def test_a_role_lease_shows_its_ticket_and_a_stalled_chain(viewer: Client, at_noon: datetime) -> None:
    Slot.objects.create(name="eventservice/engine", ticket=812, taken_at=at_noon - timedelta(hours=1))
    Node.objects.update(cluster="eventservice")
    page = get_page(viewer)
    assert "812" in page
    assert "chain eventservice/engine has stalled" in page


@pytest.mark.usefixtures("healthy")
def test_a_role_shows_the_process_that_plays_it_and_those_that_stand_by(
    viewer: Client, at_noon: datetime
) -> None:
    Node.objects.update(cluster="blue")
    create_node(NodeRole.STANDBY, at_noon, hostname="engine-2", process_id=99, cluster="blue")
    Slot.objects.create(name="blue/engine", taken_at=at_noon, owner_id=new_id(), lease_until=at_noon + LEASE)
    response = viewer.get("/cluster/")
    page = " ".join(response.content.decode().split())
    assert '<span class="pill ">waiting</span>' in page
    assert '<span class="muted break">of blue</span>' in page
    (role,) = response.context["roles"]
    assert (role.holder.hostname, [node.process_id for node in role.standbys]) == ("engine-1", [99])
    assert page.count("engine-2 · 99") == 2
    assert "The cluster is healthy" in page  # a standby is no problem


@pytest.mark.usefixtures("healthy")
def test_the_number_of_queries_does_not_grow_with_overdue_shards(
    viewer: Client, tenant: Tenant, at_noon: datetime, django_assert_max_num_queries: Any
) -> None:
    for shard_id in range(40):
        create_timer(tenant, shard_id, at_noon - timedelta(minutes=1))
    viewer.get("/cluster/?shards=all")
    with django_assert_max_num_queries(30):
        viewer.get("/cluster/?shards=all")


@pytest.mark.parametrize("query", ["shards=mine", "after=-2", "after=x"])
def test_an_invalid_parameter_is_an_error_and_not_an_empty_list(viewer: Client, query: str) -> None:
    assert viewer.get(f"/cluster/?{query}").status_code == 400


@pytest.mark.usefixtures("healthy")
def test_the_sizes_of_shards_are_shown_and_a_large_one_is_reported(viewer: Client, at_noon: datetime) -> None:
    ShardSize.objects.create(shard_id=7, scheduled=1234, counted_at=at_noon)
    assert "at most 1,234 timers each" in " ".join(get_page(viewer).split())
    ShardSize.objects.filter(shard_id=7).update(scheduled=MAX_ADVISED_TIMERS + 1)
    assert "1 shard has more than 25,000 scheduled timers: 25,001 in shard 7." in get_page(viewer)
    response = viewer.get("/cluster/?shards=all")
    assert {row["shard"].shard_id: row["scheduled"] for row in response.context["rows"]}[7] == 25_001
    assert "25,001" in response.content.decode()


def test_the_version_of_each_node_and_of_each_owner_is_shown(viewer: Client, healthy: Node) -> None:
    TimerShard.objects.update(metadata={"hostname": "engine-1", "serviceVersion": "0123456789ab"})
    page = get_page(viewer, "/cluster/?shards=all")
    assert f"version {healthy.version}" in page
    assert "version 0123456789ab" in page

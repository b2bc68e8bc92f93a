"""The cluster: which processes run, which shards they own, and what waits in them."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from django.http import HttpRequest, HttpResponse

from eventservice.api.problems import FieldError, raise_for_errors
from eventservice.console.base.query import Query
from eventservice.console.base.views import ConsoleView
from eventservice.db.bounded_count import MAX_COUNTED
from eventservice.db.now import db_now
from eventservice.kernel.sharding import MAX_SHARDS
from eventservice.kernel.version import get_version
from eventservice.operators.health import (
    OVERDUE,
    WEB_PROCESS,
    ClusterState,
    blame_database,
    blame_pause,
    check_brokers,
    check_cluster,
    check_outbox_lag,
    check_overdue,
    check_parked_events,
    check_shard_sizes,
    check_timer_stores,
    describe_state,
    read_cluster,
    select_problems,
)
from eventservice.runtime.models import Slot
from eventservice.tenants.directory import get_max_shards, list_all_namespaces
from outbox.models import OutboxPartition
from outbox.status import get_status as get_outbox_status
from timers.models import Node
from timers.persistence import timer_persistence
from timers.port import Backlog, ShardFilter, ShardState
from timers.shard_sizes import get_shard_sizes, list_shard_sizes

SHARDS_PER_PAGE = 50
MAX_NAMESPACES = 100


class ClusterPage(ConsoleView):
    nav = "cluster"
    template = "console/cluster.html"

    def get(self, request: HttpRequest) -> HttpResponse:
        errors: list[FieldError] = []
        query = Query(request.GET, errors)
        # Folded unless asked for: they are many, and nearly alike.
        chosen = query.choice("shards", list(ShardFilter), "")
        listed = ShardFilter(chosen) if chosen else None
        unfolded = query.choice("partitions", ["all"], "")
        after = query.number("after", -1, minimum=0, maximum=MAX_SHARDS)
        raise_for_errors(errors)
        now = db_now()
        cluster = read_cluster(now, Slot.objects.order_by("name"))
        waiting = timer_persistence.measure_backlog(now, MAX_COUNTED)
        oldest = _compute_overdue(cluster, waiting)
        rows = timer_persistence.list_shard_states(listed, now, after, SHARDS_PER_PAGE + 1) if listed else []
        namespaces = list_all_namespaces(MAX_NAMESPACES + 1)
        overdue = check_overdue(waiting.overdue, oldest, cluster)
        outbox = get_outbox_status(MAX_COUNTED)
        sizes = get_shard_sizes()
        findings = [
            *check_cluster(cluster, WEB_PROCESS),
            overdue,
            check_shard_sizes(sizes),
            check_outbox_lag(outbox),
            check_parked_events(outbox),
            *check_brokers(outbox),
            *check_timer_stores(now),
        ]
        shown = rows[:SHARDS_PER_PAGE]
        scheduled = list_shard_sizes([row.shard.shard_id for row in shown])
        context = {
            "now": now,
            "cluster": cluster,
            "problems": select_problems(blame_database(blame_pause(findings, cluster.pause))),
            "backlog": waiting,
            "oldest_overdue": oldest,
            "overdue_severity": overdue.severity,
            "nodes": [(node, _describe_node(node, cluster)) for node in cluster.nodes],
            "version": get_version(),
            "owners": _add_hosts(cluster.ownerships, cluster),
            "partition_groups": _group_partitions(cluster),
            "partitions": _add_hosts(cluster.partitions, cluster) if unfolded else [],
            "roles": cluster.roles,
            "listed": listed,
            "after": after,
            "rows": [_build_shard_row(row, cluster, scheduled) for row in shown],
            "sizes": sizes,
            "next_after": rows[SHARDS_PER_PAGE - 1].shard.shard_id if len(rows) > SHARDS_PER_PAGE else None,
            "max_shards": get_max_shards(),
            "namespaces": namespaces[:MAX_NAMESPACES],
            "more_namespaces": len(namespaces) > MAX_NAMESPACES,
        }
        return self.render(context)


def _compute_overdue(cluster: ClusterState, waiting: Backlog | ShardState) -> timedelta:
    return max(timedelta(), cluster.now - waiting.first_due) if waiting.first_due else timedelta()


def _describe_node(node: Node, cluster: ClusterState) -> dict[str, Any]:
    """Return the state of a node as a word with its color, and how many shards and partitions it owns."""
    word = describe_state(node, cluster.now)
    severity = {"dead": "error", "stopping": "warning", "live": "ok"}.get(word, "")
    shards = sum(group.shards for group in cluster.ownerships if group.owner_id == node.owner_id)
    partitions = sum(partition.owner_id == node.owner_id for partition in cluster.partitions)
    return {"severity": severity, "word": word, "shards": shards, "partitions": partitions}


def _add_hosts(owned: Sequence[Any], cluster: ClusterState) -> list[tuple[Any, str]]:
    """Pair each with the host and process of its owner, or an empty string if that has left."""
    hosts = _find_hosts((lease.owner_id for lease in owned), cluster)
    return list(zip(owned, hosts, strict=True))


def _group_partitions(cluster: ClusterState) -> list[dict[str, Any]]:
    """Return the partitions of each owner as ranges: first those without an owner, then the owner with the most."""
    by_owner: dict[uuid.UUID | None, list[OutboxPartition]] = {}
    for partition in cluster.partitions:
        owner = partition.owner_id if cluster.is_held(partition) else None
        by_owner.setdefault(owner, []).append(partition)
    groups = [
        {
            "owner_id": owner,
            "host": host,
            "count": len(by_owner[owner]),
            "ranges": format_ranges([partition.partition for partition in by_owner[owner]]),
            "first_lease_ends": min((p.lease_until for p in by_owner[owner] if p.lease_until), default=None),
        }
        for owner, host in zip(by_owner, _find_hosts(by_owner, cluster), strict=True)
    ]
    return sorted(groups, key=lambda group: (group["owner_id"] is not None, -group["count"]))


def _find_hosts(owners: Iterable[uuid.UUID | None], cluster: ClusterState) -> list[str]:
    hosts = {node.owner_id: f"{node.hostname} · {node.process_id}" for node in cluster.nodes}
    return [hosts.get(owner, "") if owner else "" for owner in owners]


def format_ranges(numbers: Iterable[int]) -> str:
    """Return sorted numbers with runs shortened: "0–3, 7, 9–15"."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ", ".join("–".join(map(str, run)) for run in runs)


def _build_shard_row(
    state: ShardState, cluster: ClusterState, scheduled: Mapping[int, int]
) -> dict[str, Any]:
    owner = state.shard.metadata or {}
    return {
        "shard": state.shard,
        "owned": cluster.is_held(state.shard),
        # Engines of an older release called it "host".
        "host": owner.get("hostname") or owner.get("host", ""),
        "version": owner.get("serviceVersion", ""),
        "scheduled": scheduled.get(state.shard.shard_id),
        "first_due": state.first_due,
        "overdue": state.overdue,
        "late": not OVERDUE.rate(_compute_overdue(cluster, state)).is_ok,
    }

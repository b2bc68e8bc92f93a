"""Timers & nodes: who runs, who owns what, and what to do when nobody does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse

from eventservice.api.fields import raise_if_invalid
from eventservice.api.pagination import Query
from eventservice.api.problems import FieldError
from eventservice.console.base.views import ConsoleView
from eventservice.db.bounded_count import MAX_COUNTED
from eventservice.db.now import db_now
from eventservice.kernel.sharding import MAX_SHARDS
from eventservice.runtime.models import Slot
from eventservice.tenants.directory import get_max_shards, list_all_namespaces
from outbox.models import OutboxPartition
from outbox.status import list_partitions
from timers.models import NodeRole
from timers.operator_views import (
    Ownership,
    ShardFilter,
    ShardState,
    list_nodes,
    list_ownerships,
    list_shard_states,
    measure_backlog,
)

SHARDS_LISTED = 50
NAMESPACES_LISTED = 100
# What is due is taken within milliseconds; what is overdue for so long tells of trouble.
TOLERABLE = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class Trouble:
    """What is wrong, and what to do."""

    level: str  # as the banners have it: error, warning
    text: str
    remedy: str
    command: str = ""


@dataclass(frozen=True, slots=True)
class Overview:
    now: datetime
    nodes: Sequence[Any]
    ownerships: Sequence[Ownership]
    partitions: Sequence[OutboxPartition]
    slots: Sequence[Slot]
    overdue: int
    first_due: datetime | None
    max_shards: int

    def live(self, role: NodeRole) -> list[Any]:
        return [node for node in self.nodes if node.role == role and node.is_alive(self.now)]

    @property
    def silent(self) -> list[Any]:
        return [node for node in self.nodes if not node.is_alive(self.now)]

    @property
    def engines(self) -> int:
        return len(self.live(NodeRole.ENGINE))

    @property
    def dispatchers(self) -> int:
        return len(self.live(NodeRole.DISPATCHER))

    @property
    def in_flight(self) -> int:
        return sum(node.in_flight for node in self.nodes)

    @property
    def shards(self) -> int:
        return sum(of.shards for of in self.ownerships)

    @property
    def unowned(self) -> int:
        return sum(of.shards for of in self.ownerships if of.owner_id is None)

    @property
    def unowned_partitions(self) -> int:
        return sum(not self.is_owned(partition) for partition in self.partitions)

    def is_owned(self, lease: Any) -> bool:
        return lease.owner_id is not None and lease.lease_until is not None and lease.lease_until > self.now

    @property
    def oldest_overdue(self) -> timedelta:
        return max(timedelta(), self.now - self.first_due) if self.first_due else timedelta()

    @property
    def troubles(self) -> list[Trouble]:
        return [*_of_engines(self), *_of_dispatchers(self), *_of_slots(self)]


def read_overview() -> Overview:
    now = db_now()
    waiting = measure_backlog(now, MAX_COUNTED)
    return Overview(
        now=now,
        nodes=list_nodes(),
        ownerships=list_ownerships(),
        partitions=list_partitions(),
        slots=list(Slot.objects.order_by("name")),
        overdue=waiting.overdue,
        first_due=waiting.first_due,
        max_shards=get_max_shards(),
    )


class TimersPage(ConsoleView):
    nav = "timers"
    template = "console/timers.html"

    def get(self, request: HttpRequest) -> HttpResponse:
        faults: list[FieldError] = []
        query = Query(request.GET, faults)
        listed = ShardFilter(query.choice("shards", list(ShardFilter), ShardFilter.ALL))
        after = query.number("after", -1, least=0, most=MAX_SHARDS)
        raise_if_invalid(faults)
        overview = read_overview()
        rows = list_shard_states(listed, overview.now, after, SHARDS_LISTED + 1)
        namespaces = list_all_namespaces(NAMESPACES_LISTED + 1)
        return self.render(
            {
                "overview": overview,
                "now": overview.now,
                "nodes": [(node, _hands(node, overview)) for node in overview.nodes],
                "owners": _with_hosts(overview.ownerships, overview),
                "partitions": _with_hosts(overview.partitions, overview),
                "slots": [(slot, overview.is_owned(slot)) for slot in overview.slots],
                "listed": listed,
                "after": after,
                "rows": [_shard_row(row, overview) for row in rows[:SHARDS_LISTED]],
                "next_after": rows[SHARDS_LISTED - 1].shard.shard_id if len(rows) > SHARDS_LISTED else None,
                "namespaces": namespaces[:NAMESPACES_LISTED],
                "more_namespaces": len(namespaces) > NAMESPACES_LISTED,
            }
        )


# --- what the tables show -------------------------------------------------------------------------------------


def _hands(node: Any, overview: Overview) -> dict[str, Any]:
    """How a node is, in a word, and what it holds."""
    if not node.is_alive(overview.now):
        pill, word = "alarm", "silent"
    elif node.role == NodeRole.LEAVING:
        pill, word = "worry", "finishing"
    else:
        pill, word = "fine", "live"
    shards = next((of.shards for of in overview.ownerships if of.owner_id == node.owner_id), 0)
    owned = sum(partition.owner_id == node.owner_id for partition in overview.partitions)
    return {"pill": pill, "word": word, "shards": shards, "partitions": owned}


def _with_hosts(owned: Sequence[Any], overview: Overview) -> list[tuple[Any, str]]:
    """Each with where its owner runs, if that is a node."""
    hosts = {node.owner_id: f"{node.hostname} · {node.process_id}" for node in overview.nodes}
    return [(of, hosts.get(of.owner_id, "")) for of in owned]


def _shard_row(state: ShardState, overview: Overview) -> dict[str, Any]:
    shard = state.shard
    overdue = max(timedelta(), overview.now - state.first_due) if state.first_due else timedelta()
    return {
        "shard": shard,
        "owned": overview.is_owned(shard),
        "host": (shard.metadata or {}).get("host", ""),
        "first_due": state.first_due,
        "overdue": state.overdue,
        "late": overdue > TOLERABLE,
    }


# --- what is wrong --------------------------------------------------------------------------------------------


def _of_engines(overview: Overview) -> Iterator[Trouble]:
    if not overview.engines:
        text = "No engine is running: calls are accepted and stored, and none is sent."
        yield Trouble("error", text, "Start one:", "manage.py cluster")
    for node in overview.silent:
        yield Trouble("warning", *_say_silent(node, overview))
    if overview.engines and overview.unowned:
        text = f"{overview.unowned} of {overview.shards} shards have no owner: what is due in them waits."
        yield Trouble("warning", text, "The engines share them out within seconds; look again in a moment.")
    if overview.engines and overview.oldest_overdue > TOLERABLE:
        yield _say_overdue(overview)


def _say_silent(node: Any, overview: Overview) -> tuple[str, str]:
    where = f"{node.hostname}, process {node.process_id}"
    text = f"The {node.role} on {where} has not been heard of since its lease ended."
    if node.role == NodeRole.DISPATCHER:
        return text, "Another dispatcher takes over its partitions; its row goes when an engine cleans up."
    if overview.engines:
        return text, "Another engine takes over its shards and calls within seconds."
    return text, "No other engine is there to take over its calls."


def _say_overdue(overview: Overview) -> Trouble:
    seconds = int(overview.oldest_overdue.total_seconds())
    return Trouble(
        "warning",
        f"Timers are overdue, the oldest for {seconds:,} s.",
        "The engines do not keep up, or a tenant or host is at its ceiling: look at what is in flight below "
        "and at the tenants' limits; add engines if all are busy.",
    )


def _of_dispatchers(overview: Overview) -> Iterator[Trouble]:
    if not overview.dispatchers:
        yield Trouble(
            "error",
            "No dispatcher is running: events are stored, and none is published.",
            "Start one:",
            "manage.py cluster",
        )
    elif overview.unowned_partitions:
        yield Trouble(
            "warning",
            f"{overview.unowned_partitions} partitions of the outbox have no owner: their events wait.",
            "The dispatchers share them out within seconds; look again in a moment.",
        )


def _of_slots(overview: Overview) -> Iterator[Trouble]:
    still = timedelta(seconds=3 * settings.SLICE_SECONDS + settings.SHUTDOWN_SECONDS)
    for slot in overview.slots:
        works = overview.engines if slot.name.endswith("/engine") else overview.dispatchers
        if works and slot.taken_at is not None and overview.now - slot.taken_at > still:
            yield Trouble(
                "warning",
                f"The cluster's chain {slot.name} stands still.",
                "A running cluster mends it within a minute. If none runs because the roles run alone, all is well.",
            )

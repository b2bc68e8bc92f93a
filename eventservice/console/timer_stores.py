"""Timer stores: what they know of namespaces, which processes share them, and who owns the shards.

The page asks a store for all of that each time it is shown. Timers are counted only on request, because a store reads all
timers of the shards for that.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse

from eventservice.api.problems import FieldError, raise_for_errors
from eventservice.console.base.query import Query
from eventservice.console.base.views import ConsoleView
from eventservice.console.cluster import format_ranges
from eventservice.db.now import db_now
from eventservice.kernel.sharding import MAX_SHARDS
from eventservice.tenants.directory import count_namespaces_by_store
from orchestration.feeder.declarations import compare_namespaces, find_num_shards
from orchestration.lifecycle.timer_marks import MarkBacklog, measure_marks
from timers.cell_stores import get_cell_store
from timers.stores.port import Member, ShardBacklog, ShardOwnership, TimerStore, TimerStoreError

SHARDS_PER_PAGE = 50
MAX_NAMESPACES = 100
# How many of the timers that have been due longest are looked at to find one that is not taken.
MAX_LOOKED_AT = 20


@dataclass(frozen=True, slots=True)
class OwnerGroup:
    """The shards of one process."""

    owner: str | None
    host: str
    is_member: bool
    count: int
    ranges: str


@dataclass(frozen=True, slots=True)
class ShardRow:
    """One shard. What is None has not been counted."""

    shard: ShardOwnership
    host: str
    backlog: ShardBacklog | None = None
    lag: timedelta | None = None


class TimerStoresPage(ConsoleView):
    nav = "timers"
    template = "console/timers/stores.html"

    def get(self, request: HttpRequest) -> HttpResponse:
        configured = [spec.name for spec in settings.TIMER_STORES]
        used = count_namespaces_by_store()
        names = [*configured, *(name for name in used if name not in configured)]
        errors: list[FieldError] = []
        query = Query(request.GET, errors)
        name = query.choice("store", names, names[0] if names else "")
        after = query.number("after", -1, minimum=0, maximum=MAX_SHARDS)
        counted = query.choice("timers", ["count"], "")
        raise_for_errors(errors)
        now = db_now()
        context = {
            "now": now,
            "names": names,
            "name": name,
            "is_configured": name in configured,
            "marks": _find_marks(name),
            "after": after,
            "counted": counted,
        }
        try:
            shown = _read_store(name, after, bool(counted), now) if name in configured else {}
        except TimerStoreError as error:
            return self.render({**context, "trouble": str(error)}, status=503)
        return self.render({**context, **shown})


def _find_marks(name: str) -> MarkBacklog | None:
    return next((backlog for backlog in measure_marks() if backlog.store == name), None)


def _read_store(name: str, after: int, counts: bool, now: datetime) -> dict[str, Any]:
    store = get_cell_store(name)
    namespaces, members = compare_namespaces(name, store), store.members()
    num_shards = find_num_shards(namespaces)
    shards = store.shards(range(num_shards))
    page = shards[after + 1 : after + 1 + SHARDS_PER_PAGE]
    rows = list(_count_timers(store, page, now)) if counts else [_build_row(shard) for shard in page]
    return {
        "namespaces": namespaces[:MAX_NAMESPACES],
        "more_namespaces": len(namespaces) > MAX_NAMESPACES,
        "members": _describe_members(members, shards),
        "num_shards": num_shards,
        "owners": _group_by_owner(shards, members),
        "rows": rows,
        "next_after": page[-1].shard if page and page[-1].shard + 1 < num_shards else None,
    }


def _build_row(shard: ShardOwnership) -> ShardRow:
    return ShardRow(shard, _get_host(shard.metadata) if shard.owner else "")


def _count_timers(store: TimerStore, shards: Sequence[ShardOwnership], now: datetime) -> Iterator[ShardRow]:
    backlogs = store.count_timers([shard.shard for shard in shards], now)
    for shard, backlog in zip(shards, backlogs, strict=True):
        lag = _find_lag(store, shard.shard, now) if backlog.overdue else timedelta()
        yield ShardRow(shard, _build_row(shard).host, backlog, lag)


def _find_lag(store: TimerStore, shard: int, now: datetime) -> timedelta:
    """Return how long a timer has been due that nobody has taken."""
    for timer in store.due(shard, now, now, None, MAX_LOOKED_AT).timers:
        if not timer.is_taken(now):
            return now - timer.execute_at
    return timedelta()


def _get_host(metadata: Any) -> str:
    return " · ".join(filter(None, [metadata.get("hostname", ""), metadata.get("processId", "")]))


def _describe_members(
    members: Sequence[Member], shards: Sequence[ShardOwnership]
) -> list[tuple[Member, str, int]]:
    """Return the processes that share the store, each with its host and number of shards."""
    owned = Counter(shard.owner for shard in shards)
    return [(member, _get_host(member.metadata), owned[str(member.id)]) for member in members]


def _group_by_owner(shards: Sequence[ShardOwnership], members: Sequence[Member]) -> list[OwnerGroup]:
    """Return the shards of each owner as ranges: first those without an owner, then the owner with the most."""
    by_owner: dict[str | None, list[ShardOwnership]] = defaultdict(list)
    for shard in shards:
        by_owner[shard.owner].append(shard)
    alive = {str(member.id) for member in members}
    groups = [
        OwnerGroup(
            owner,
            _get_host(owned[0].metadata) if owner else "",
            owner in alive,
            len(owned),
            format_ranges([shard.shard for shard in owned]),
        )
        for owner, owned in by_owner.items()
    ]
    return sorted(groups, key=lambda group: (group.owner is not None, -group.count))

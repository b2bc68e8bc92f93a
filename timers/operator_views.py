"""Reads for operators: which nodes run, who owns which shards, and what is overdue."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

from django.db import connection
from django.db.models import Count, Max, Min, OuterRef, Q, QuerySet, Subquery

from timers.models import Node, TimerSchedule, TimerShard, TimerState

# Counting stops here for each shard, because one statement counts for a whole page of shards.
MAX_COUNTED_OVERDUE = 1000


class ShardFilter(StrEnum):
    ALL = "all"
    UNOWNED = "unowned"
    OVERDUE = "overdue"


@dataclass(frozen=True, slots=True)
class Ownership:
    """How many shards one owner has. An `owner_id` of None stands for shards without an owner."""

    owner_id: uuid.UUID | None
    shards: int
    first_lease_ends: datetime | None
    last_claimed_at: datetime | None


@dataclass(frozen=True, slots=True)
class Backlog:
    """How many scheduled timers are overdue, and when the first scheduled timer is due."""

    overdue: int
    first_due: datetime | None


@dataclass(frozen=True, slots=True)
class ShardState:
    """A shard with its backlog. `overdue` counts up to one more than MAX_COUNTED_OVERDUE."""

    shard: TimerShard
    first_due: datetime | None
    overdue: int


class StuckShard(NamedTuple):
    shard_id: int
    first_due: datetime


def list_shards(after: int, limit: int) -> Sequence[TimerShard]:
    return list(TimerShard.objects.filter(shard_id__gt=after).order_by("shard_id")[:limit])


def list_nodes() -> Sequence[Node]:
    return list(Node.objects.order_by("started_at", "owner_id"))


def count_shards_by_owner() -> dict[uuid.UUID | None, int]:
    return dict(TimerShard.objects.order_by().values_list("owner_id").annotate(Count("pk")))


def list_ownerships() -> list[Ownership]:
    """Return the shards of each owner: first those without an owner, then the owner with the most."""
    groups = TimerShard.objects.order_by().values_list("owner_id")
    found = groups.annotate(Count("pk"), Min("lease_until"), Max("claimed_at"))
    return sorted(
        (Ownership(*group) for group in found), key=lambda one: (one.owner_id is not None, -one.shards)
    )


def measure_backlog(now: datetime, max_count: int) -> Backlog:
    """Return the backlog of all shards. Counting stops at one more than `max_count`."""
    first_due = dict(
        _annotate_first_due().filter(first_due__isnull=False).values_list("shard_id", "first_due")
    )
    late = sorted(shard for shard, due_at in first_due.items() if due_at <= now)
    overdue = TimerSchedule.across_tenants.filter(
        shard_id__in=late, state=TimerState.SCHEDULED, due_at__lte=now
    )
    # Ordered like the index: otherwise PostgreSQL prefers to read the table (see timers.poller).
    counted = overdue.order_by("shard_id", "due_at").values("shard_id")[: max_count + 1]
    return Backlog(counted.count() if late else 0, min(first_due.values(), default=None))


def list_shard_states(listed: ShardFilter, now: datetime, after: int, limit: int) -> list[ShardState]:
    rows = _annotate_first_due().filter(shard_id__gt=after).order_by("shard_id")
    if listed is ShardFilter.UNOWNED:
        rows = rows.filter(owner_id=None)
    elif listed is ShardFilter.OVERDUE:
        rows = rows.filter(first_due__lte=now)
    page = list(rows[:limit])
    overdue = _count_overdue([row.shard_id for row in page if row.first_due and row.first_due <= now], now)
    return [ShardState(row, row.first_due, overdue.get(row.shard_id, 0)) for row in page]


def list_stuck_shards(overdue_since: datetime, now: datetime) -> list[StuckShard]:
    """Return the shards without a lasting lease that have had an overdue timer since the given time."""
    free = Q(owner_id=None) | Q(lease_until__lt=now)
    stuck = _annotate_first_due().filter(free, first_due__lte=overdue_since).order_by("first_due")
    return [StuckShard(*row) for row in stuck.values_list("shard_id", "first_due")]


def _annotate_first_due() -> QuerySet[Any]:
    """Annotate each shard with the due time of its first scheduled timer. This takes one index seek a shard."""
    waiting = TimerSchedule.across_tenants.filter(shard_id=OuterRef("shard_id"), state=TimerState.SCHEDULED)
    first = Subquery(waiting.order_by("due_at").values("due_at")[:1])
    return TimerShard.objects.annotate(first_due=first)


_COUNT_OVERDUE = """
SELECT {shard}, COUNT(*) FROM (
    SELECT 1 FROM timer_schedules WHERE shard_id = {shard} AND state = 'Scheduled' AND due_at <= %s LIMIT {limit}
) AS overdue_{shard}"""


def _count_overdue(shard_ids: Sequence[int], now: datetime) -> dict[int, int]:
    if not shard_ids:
        return {}
    counts = [_COUNT_OVERDUE.format(shard=int(shard), limit=MAX_COUNTED_OVERDUE + 1) for shard in shard_ids]
    moment = connection.ops.adapt_datetimefield_value(now)
    with connection.cursor() as cursor:
        cursor.execute(" UNION ALL ".join(counts), [moment] * len(counts))
        return dict(cursor.fetchall())

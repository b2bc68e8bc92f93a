"""Who runs, who owns what, and where something is overdue: for operators."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from django.db import connection
from django.db.models import Count, Max, Min, OuterRef, Q, QuerySet, Subquery

from timers.models import Node, TimerSchedule, TimerShard, TimerState

# Of one shard: the counts of a page of them are one statement.
MAX_COUNTED_OVERDUE = 1000


class ShardFilter(StrEnum):
    ALL = "all"
    UNOWNED = "unowned"
    OVERDUE = "overdue"


@dataclass(frozen=True, slots=True)
class Ownership:
    """The shards of one owner; `owner_id` None: of nobody."""

    owner_id: uuid.UUID | None
    shards: int
    first_lease_ends: datetime | None
    last_claimed_at: datetime | None


@dataclass(frozen=True, slots=True)
class Backlog:
    """Of all timers that wait: how many are overdue, and when the first is due."""

    overdue: int
    first_due: datetime | None


@dataclass(frozen=True, slots=True)
class ShardState:
    """`first_due`: of what waits in it. `overdue` counts up to one more than MOST_OVERDUE."""

    shard: TimerShard
    first_due: datetime | None
    overdue: int


def list_shards(after: int, limit: int) -> Sequence[TimerShard]:
    return list(TimerShard.objects.filter(shard_id__gt=after).order_by("shard_id")[:limit])


def list_nodes() -> Sequence[Node]:
    return list(Node.objects.order_by("started_at", "owner_id"))


def count_shards_by_owner() -> dict[uuid.UUID | None, int]:
    return dict(TimerShard.objects.order_by().values_list("owner_id").annotate(Count("pk")))


def list_ownerships() -> list[Ownership]:
    """Those of nobody first."""
    groups = TimerShard.objects.order_by().values_list("owner_id")
    found = groups.annotate(Count("pk"), Min("lease_until"), Max("claimed_at"))
    return sorted(
        (Ownership(*group) for group in found), key=lambda of: (of.owner_id is not None, -of.shards)
    )


def measure_backlog(now: datetime, most: int) -> Backlog:
    """Counted up to one more than `most`."""
    first_due = dict(_with_first_due().filter(first_due__isnull=False).values_list("shard_id", "first_due"))
    late = sorted(shard for shard, due_at in first_due.items() if due_at <= now)
    overdue = TimerSchedule.across_tenants.filter(
        shard_id__in=late, state=TimerState.SCHEDULED, due_at__lte=now
    )
    # In the order of the index: otherwise PostgreSQL would rather read the table (timers.poller).
    counted = overdue.order_by("shard_id", "due_at").values("shard_id")[: most + 1]
    return Backlog(counted.count() if late else 0, min(first_due.values(), default=None))


def list_shard_states(listed: ShardFilter, now: datetime, after: int, limit: int) -> list[ShardState]:
    rows = _with_first_due().filter(shard_id__gt=after).order_by("shard_id")
    if listed is ShardFilter.UNOWNED:
        rows = rows.filter(owner_id=None)
    elif listed is ShardFilter.OVERDUE:
        rows = rows.filter(first_due__lte=now)
    page = list(rows[:limit])
    overdue = _count_overdue([row.shard_id for row in page if row.first_due and row.first_due <= now], now)
    return [ShardState(row, row.first_due, overdue.get(row.shard_id, 0)) for row in page]


def list_stuck_shards(overdue_since: datetime, now: datetime) -> list[TimerShard]:
    """Owned by nobody, or under a lease that has ended, while timers of them have been overdue since then."""
    free = Q(owner_id=None) | Q(lease_until__lt=now)
    return list(_with_first_due().filter(free, first_due__lte=overdue_since).order_by("first_due"))


def _with_first_due() -> QuerySet[Any]:
    """One seek a shard, whatever waits in it."""
    waiting = TimerSchedule.across_tenants.filter(shard_id=OuterRef("shard_id"), state=TimerState.SCHEDULED)
    first = Subquery(waiting.order_by("due_at").values("due_at")[:1])
    return TimerShard.objects.annotate(first_due=first)


COUNT_OVERDUE = """
SELECT {shard}, COUNT(*) FROM (
    SELECT 1 FROM timer_schedules WHERE shard_id = {shard} AND state = 'Scheduled' AND due_at <= %s LIMIT {most}
) AS overdue_{shard}"""


def _count_overdue(shard_ids: Sequence[int], now: datetime) -> dict[int, int]:
    if not shard_ids:
        return {}
    counts = [COUNT_OVERDUE.format(shard=int(shard), most=MAX_COUNTED_OVERDUE + 1) for shard in shard_ids]
    moment = connection.ops.adapt_datetimefield_value(now)
    with connection.cursor() as cursor:
        cursor.execute(" UNION ALL ".join(counts), [moment] * len(counts))
        return dict(cursor.fetchall())

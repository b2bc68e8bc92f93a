"""Reads of the timers' backlog, shard by shard, for operators."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import connection
from django.db.models import Count, OuterRef, Q, QuerySet, Subquery

from timers.models import TimerSchedule, TimerShard, TimerState
from timers.port import Backlog, ShardFilter, ShardState, StuckShard

# Counting stops here for each shard, because one statement counts for a whole page of shards.
MAX_COUNTED_OVERDUE = 1000


class SqlBacklog:
    """The operators' part of the port (timers.port.TimerPersistencePort)."""

    def measure_backlog(self, now: datetime, max_count: int) -> Backlog:
        first_due = dict(
            _annotate_first_due().filter(first_due__isnull=False).values_list("shard_id", "first_due")
        )
        late = sorted(shard for shard, due_at in first_due.items() if due_at <= now)
        overdue = TimerSchedule.across_tenants.filter(
            shard_id__in=late, state=TimerState.SCHEDULED, due_at__lte=now
        )
        # Ordered like the index: otherwise PostgreSQL prefers to read the table (see timers.persistence).
        counted = overdue.order_by("shard_id", "due_at").values("shard_id")[: max_count + 1]
        return Backlog(counted.count() if late else 0, min(first_due.values(), default=None))

    def count_due(self, tenant_id: UUID, by: datetime, max_count: int) -> int:
        timers = TimerSchedule.objects.for_tenant(tenant_id)
        due = timers.filter(state=TimerState.SCHEDULED, due_at__lte=by)
        return due.order_by("due_at").values_list("due_at")[:max_count].count()

    def list_shard_states(
        self, listed: ShardFilter, now: datetime, after: int, limit: int
    ) -> list[ShardState]:
        rows = _annotate_first_due().filter(shard_id__gt=after).order_by("shard_id")
        if listed is ShardFilter.UNOWNED:
            rows = rows.filter(owner_id=None)
        elif listed is ShardFilter.OVERDUE:
            rows = rows.filter(first_due__lte=now)
        page = list(rows[:limit])
        late = [row.shard_id for row in page if row.first_due and row.first_due <= now]
        overdue = _count_overdue(late, now)
        return [ShardState(row, row.first_due, overdue.get(row.shard_id, 0)) for row in page]

    def count_scheduled(self, shards: Collection[int]) -> dict[int, int]:
        scheduled = TimerSchedule.across_tenants.filter(state=TimerState.SCHEDULED, shard_id__in=shards)
        return dict(scheduled.order_by("shard_id").values_list("shard_id").annotate(count=Count("*")))

    def list_stuck_shards(self, overdue_since: datetime, now: datetime) -> list[StuckShard]:
        free = Q(owner_id=None) | Q(lease_until__lt=now)
        stuck = _annotate_first_due().filter(free, first_due__lte=overdue_since).order_by("first_due")
        return [StuckShard(*row) for row in stuck.values_list("shard_id", "first_due")]


def _annotate_first_due() -> QuerySet[Any]:
    """Annotate each shard with the due time of its first scheduled timer. This takes one index seek a shard."""
    waiting = TimerSchedule.across_tenants.filter(shard_id=OuterRef("shard_id"), state=TimerState.SCHEDULED)
    # Ordered like the index, or else MySQL sorts all timers of a shard.
    first = Subquery(waiting.order_by("shard_id", "due_at").values("due_at")[:1])
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

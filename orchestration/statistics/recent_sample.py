"""What has become of the calls of the last minutes, and what waits: from indexes and a sample, whatever the history.

A call counts to the window by when it was due, because the index that is by status is also by due time.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Min, OuterRef, QuerySet, Subquery

from eventservice.db.now import db_now
from eventservice.tenants.models import Tenant
from orchestration.models import ServiceCall
from orchestration.states import TERMINAL, Status

# Lateness and kinds of errors are told from the latest calls: at least so many, if there are, and at most MOST_READ.
MIN_SAMPLE = 1000
MAX_SAMPLE = 4 * MIN_SAMPLE
# A count stops here, for each tenant: "more than that" is all that anybody needs to know.
MAX_COUNTED_PER_TENANT = 100_000
LATENESS_BUCKETS_MS = (5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 60_000)
BACKLOG_HORIZONS = {
    "within1m": timedelta(minutes=1),
    "within5m": timedelta(minutes=5),
    "within1h": timedelta(hours=1),
    "within24h": timedelta(hours=24),
}


@dataclass(slots=True)
class RecentStatistics:
    window: timedelta
    ended: Counter[str] = field(default_factory=Counter)  # by status
    error_kinds: Counter[str] = field(default_factory=Counter)  # of the sampled failures
    running: int = 0
    backlog: dict[str, int] = field(default_factory=dict)  # by when it is due
    oldest_overdue: timedelta = timedelta()
    lateness_ms: list[float] = field(default_factory=list)  # of the sample, sorted

    @property
    def per_second(self) -> float:
        return sum(self.ended.values()) / self.window.total_seconds()

    def lateness(self, percentile: float) -> float | None:
        if not self.lateness_ms:
            return None
        return self.lateness_ms[min(len(self.lateness_ms) - 1, int(len(self.lateness_ms) * percentile))]


def read_recent_statistics(tenant_ids: Collection[uuid.UUID], window: timedelta) -> RecentStatistics:
    """Of these tenants together, by as many queries for all of them as for one."""
    now = db_now()
    gathered = RecentStatistics(window)
    calls = _Calls(ServiceCall.across_tenants.filter(tenant_id__in=tenant_ids), len(tenant_ids), now)
    gathered.running = calls.count(calls.rows.filter(status=Status.RUNNING))
    gathered.backlog = count_backlog(calls.rows.filter(status=Status.SCHEDULED), now, calls.count)
    gathered.oldest_overdue = find_oldest_overdue(tenant_ids, now)
    for status in sorted(TERMINAL):
        if count := calls.count(calls.ended(status, window)):
            gathered.ended[status.value] = count
    for status in (Status.SUCCEEDED, Status.FAILED):
        _sample(calls, status, gathered)
    gathered.lateness_ms.sort()
    return gathered


def count_backlog(
    scheduled: QuerySet[Any], now: datetime, count: Callable[[QuerySet[Any]], int]
) -> dict[str, int]:
    """What is overdue, what is due within each of the HORIZONS after the one before, and later."""
    counts = {"overdue": count(scheduled.filter(due_at__lte=now))}
    begin = now
    for name, horizon in BACKLOG_HORIZONS.items():
        counts[name] = count(scheduled.filter(due_at__gt=begin, due_at__lte=now + horizon))
        begin = now + horizon
    return {**counts, "later": count(scheduled.filter(due_at__gt=begin))}


def find_oldest_overdue(tenant_ids: Collection[uuid.UUID], now: datetime) -> timedelta:
    """One look at the index for each tenant: the first of all of them would be sought among all that is overdue."""
    calls = ServiceCall.objects.for_tenant(OuterRef("pk"))  # type: ignore[arg-type]
    overdue = calls.filter(status=Status.SCHEDULED, due_at__lte=now)
    first = Subquery(overdue.order_by("due_at").values("due_at")[:1])
    found = Tenant.objects.filter(pk__in=tenant_ids).annotate(first=first).aggregate(oldest=Min("first"))
    return now - (found["oldest"] or now)


@dataclass(frozen=True, slots=True)
class _Calls:
    """By their tenants' ids, also when it is all of them, because the indexes begin with these."""

    rows: Any
    tenants: int
    now: datetime

    def ended(self, status: Status, length: timedelta) -> Any:
        """Those that were due within the time before now."""
        return self.rows.filter(status=status, due_at__gt=self.now - length, due_at__lte=self.now)

    def count(self, rows: Any) -> int:
        return int(rows.order_by().values_list("tenant_id")[: MAX_COUNTED_PER_TENANT * self.tenants].count())


def _sample(calls: _Calls, status: Status, gathered: RecentStatistics) -> None:
    length, there = gathered.window, gathered.ended[status.value]
    # No index is by the due time alone: sorted, all of the window would be read. A shorter time has the latest.
    while there > MAX_SAMPLE and (fewer := calls.count(calls.ended(status, length / 4))) >= MIN_SAMPLE:
        length, there = length / 4, fewer
    rows = calls.ended(status, length).values_list("attempt", "due_at", "started_at", "outcome_meta")
    for attempt, due_at, started_at, outcome in rows.order_by()[:MAX_SAMPLE] if there else ():
        # `started_at` is that of the first attempt, and `due_at` that of the last.
        if attempt == 1 and started_at is not None:
            gathered.lateness_ms.append((started_at - due_at) / timedelta(milliseconds=1))
        if error := (outcome or {}).get("errorMeta"):
            gathered.error_kinds[error["kind"]] += 1

"""Statistics of the last minutes, for the API and /metrics: counted in indexes, and estimated from a sample of the latest calls.

A call belongs to the window in which it was due, because the index by status is also by due time.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from eventservice.db.now import db_now
from orchestration.models import RETRYING, ServiceCall
from orchestration.states import TERMINAL, Status
from orchestration.statistics.live_counts import count_backlog, find_oldest_overdue

# Lateness and error kinds are estimated from the latest calls: at least MIN_SAMPLE if there are that many.
MIN_SAMPLE = 1000
MAX_SAMPLE = 4 * MIN_SAMPLE
# A count stops here, for each tenant.
MAX_COUNTED_PER_TENANT = 100_000


@dataclass(slots=True)
class RecentStatistics:
    window: timedelta
    ended: Counter[str] = field(default_factory=Counter)  # by status
    error_kinds: Counter[str] = field(default_factory=Counter)  # of the sampled failures
    running: int = 0
    retrying: int = 0  # calls that wait for another attempt
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
    """Return the statistics of these tenants together. It takes as many queries for all of them as for one."""
    now = db_now()
    gathered = RecentStatistics(window)
    calls = _Calls(ServiceCall.across_tenants.filter(tenant_id__in=tenant_ids), len(tenant_ids), now)
    gathered.running = calls.count(calls.rows.filter(status=Status.RUNNING))
    gathered.retrying = calls.count(calls.rows.filter(RETRYING))
    gathered.backlog = count_backlog(calls.rows.filter(status=Status.SCHEDULED), now, calls.count)
    gathered.oldest_overdue = find_oldest_overdue(tenant_ids, now)
    for status in sorted(TERMINAL):
        if count := calls.count(calls.select_ended(status, window)):
            gathered.ended[status.value] = count
    for status in (Status.SUCCEEDED, Status.FAILED):
        _sample(calls, status, gathered)
    gathered.lateness_ms.sort()
    return gathered


@dataclass(frozen=True, slots=True)
class _Calls:
    """The tenants' calls, selected by the tenants' ids even if those are all, because the indexes begin with them."""

    rows: Any
    tenants: int
    now: datetime

    def select_ended(self, status: Status, length: timedelta) -> Any:
        """Select the calls of this status that were due within the last `length`."""
        return self.rows.filter(status=status, due_at__gt=self.now - length, due_at__lte=self.now)

    def count(self, rows: Any) -> int:
        return int(rows.order_by().values_list("tenant_id")[: MAX_COUNTED_PER_TENANT * self.tenants].count())


def _sample(calls: _Calls, status: Status, gathered: RecentStatistics) -> None:
    length, there = gathered.window, gathered.ended[status.value]
    # No index is by the due time alone, so sorting would read the whole window. A shorter window has the latest calls.
    while there > MAX_SAMPLE and (fewer := calls.count(calls.select_ended(status, length / 4))) >= MIN_SAMPLE:
        length, there = length / 4, fewer
    rows = calls.select_ended(status, length).values_list("attempt", "due_at", "started_at", "outcome_meta")
    for attempt, due_at, started_at, outcome in rows.order_by()[:MAX_SAMPLE] if there else ():
        # `started_at` is that of the first attempt, `due_at` that of the last.
        if attempt == 1 and started_at is not None:
            gathered.lateness_ms.append((started_at - due_at) / timedelta(milliseconds=1))
        if error := (outcome or {}).get("errorMeta"):
            gathered.error_kinds[error["kind"]] += 1

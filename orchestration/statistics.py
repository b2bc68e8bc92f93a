"""What has become of the calls of the last minutes, and what waits: from indexes and a sample, whatever the history.

A call counts to the window by when it was due, because the index that is by status is also by due time.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from eventservice.kernel.now import db_now
from orchestration.models import ServiceCall
from orchestration.states import TERMINAL, Status

# Lateness and kinds of errors are told from so many calls of a tenant, the latest.
SAMPLE = 1000
# A count stops here: "more than that" is all that anybody needs to know.
MOST_COUNTED = 100_000
BUCKETS_MS = (5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 60_000)
HORIZONS = {
    "within1m": timedelta(minutes=1),
    "within5m": timedelta(minutes=5),
    "within1h": timedelta(hours=1),
    "within24h": timedelta(hours=24),
}


@dataclass(slots=True)
class Statistics:
    window: timedelta
    ended: Counter[str] = field(default_factory=Counter)  # by status
    error_kinds: Counter[str] = field(default_factory=Counter)  # of the sampled failures
    running: int = 0
    backlog: Counter[str] = field(default_factory=Counter)  # by when it is due
    oldest_overdue: timedelta = timedelta()
    lateness_ms: list[float] = field(default_factory=list)  # of the sample, sorted

    @property
    def per_second(self) -> float:
        return sum(self.ended.values()) / self.window.total_seconds()

    def lateness(self, percentile: float) -> float | None:
        if not self.lateness_ms:
            return None
        return self.lateness_ms[min(len(self.lateness_ms) - 1, int(len(self.lateness_ms) * percentile))]

    def lateness_buckets(self) -> list[tuple[str, int]]:
        """Cumulative, as Prometheus has them; bounds in seconds."""
        counts = [(str(most / 1000), sum(late <= most for late in self.lateness_ms)) for most in BUCKETS_MS]
        return [*counts, ("+Inf", len(self.lateness_ms))]


def statistics(tenant_ids: Collection[uuid.UUID], window: timedelta) -> Statistics:
    now = db_now()
    gathered = Statistics(window)
    for tenant_id in tenant_ids:
        calls = ServiceCall.objects.for_tenant(tenant_id)
        _count_ended(calls, now, gathered)
        _count_pending(calls, now, gathered)
        _sample(calls, now, gathered)
    gathered.lateness_ms.sort()
    return gathered


def _count(calls: Any) -> int:
    return int(calls.order_by()[:MOST_COUNTED].count())


def _count_ended(calls: Any, now: datetime, gathered: Statistics) -> None:
    for status in sorted(TERMINAL):
        due = calls.filter(status=status, due_at__gt=now - gathered.window, due_at__lte=now)
        if count := _count(due):
            gathered.ended[status.value] += count


def _count_pending(calls: Any, now: datetime, gathered: Statistics) -> None:
    gathered.running += _count(calls.filter(status=Status.RUNNING))
    scheduled = calls.filter(status=Status.SCHEDULED)
    overdue = scheduled.filter(due_at__lte=now)
    gathered.backlog["overdue"] += _count(overdue)
    if oldest := overdue.order_by("due_at").values_list("due_at", flat=True).first():
        gathered.oldest_overdue = max(gathered.oldest_overdue, now - oldest)
    begin = now
    for name, horizon in HORIZONS.items():
        gathered.backlog[name] += _count(scheduled.filter(due_at__gt=begin, due_at__lte=now + horizon))
        begin = now + horizon
    gathered.backlog["later"] += _count(scheduled.filter(due_at__gt=begin))


def _sample(calls: Any, now: datetime, gathered: Statistics) -> None:
    for status in (Status.SUCCEEDED, Status.FAILED):
        ended = calls.filter(status=status, due_at__gt=now - gathered.window, due_at__lte=now)
        rows = ended.order_by("-due_at").values_list("attempt", "due_at", "started_at", "outcome_meta")
        for attempt, due_at, started_at, outcome in rows[:SAMPLE]:
            # `started_at` is that of the first attempt, and `due_at` that of the last.
            if attempt == 1 and started_at is not None:
                gathered.lateness_ms.append((started_at - due_at) / timedelta(milliseconds=1))
            if error := (outcome or {}).get("errorMeta"):
                gathered.error_kinds[error["kind"]] += 1

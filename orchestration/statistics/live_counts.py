"""How it stands at this moment: what waits, what runs, what has just ended. Each count stops, as kernel/capped.py says."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import QuerySet

from eventservice.db.bounded_count import MAX_COUNTED, count_capped
from eventservice.tenants.directory import list_tenant_ids
from orchestration.models import ServiceCall
from orchestration.states import Status
from orchestration.statistics.chart_data import ChartSlice
from orchestration.statistics.recent_sample import LATENESS_BUCKETS_MS, count_backlog, find_oldest_overdue
from orchestration.statistics.rollup import OUTCOME_COLUMNS

# One more says "and more".
MAX_LATENESS_SAMPLE = 300
MAX_OVERRUN_LISTED = 3


@dataclass(frozen=True, slots=True)
class OverrunCall:
    """Its attempt should have ended by then, whatever came of it."""

    tenant_id: uuid.UUID
    service_call_id: uuid.UUID
    name: str
    deadline_at: datetime


@dataclass(frozen=True, slots=True)
class LiveCounts:
    running: int
    backlog: dict[str, int]  # overdue, by HORIZONS, later
    oldest_overdue: timedelta
    lost: list[OverrunCall]
    lost_count: int

    @property
    def overdue(self) -> int:
        return self.backlog["overdue"]


def read_live_counts(tenant_id: uuid.UUID | None, now: datetime) -> LiveCounts:
    calls = _calls(tenant_id)
    lost = calls.filter(status=Status.RUNNING, deadline_at__lt=now).order_by("deadline_at")
    named = lost.values_list("tenant_id", "service_call_id", "name", "deadline_at")[:MAX_OVERRUN_LISTED]
    return LiveCounts(
        running=count_capped(calls.filter(status=Status.RUNNING)),
        backlog=count_backlog(calls.filter(status=Status.SCHEDULED), now, count_capped),
        oldest_overdue=find_oldest_overdue(list_tenant_ids() if tenant_id is None else [tenant_id], now),
        lost=[OverrunCall(*row) for row in named],
        lost_count=count_capped(lost),
    )


def has_calls(tenant_id: uuid.UUID | None) -> bool:
    return _calls(tenant_id).exists()


def add_uncounted(
    slices: Sequence[ChartSlice], tenant_id: uuid.UUID | None, since: datetime, now: datetime
) -> None:
    """To the slices into which they fall: calls that were due since, for as long as these are in no figures yet."""
    begin = since
    calls = _calls(tenant_id)
    for one in slices:
        if one.ends_at <= begin:
            continue
        end = min(one.ends_at, now)
        within = calls.filter(due_at__gte=begin, due_at__lt=end)
        counts: Counter[str] = Counter()
        for status, name in OUTCOME_COLUMNS.items():
            counts[name] = min(count_capped(within.filter(status=status)), MAX_COUNTED)
        one.outcomes.add(**counts)
        if counts.total():
            _sample_lateness(one, within)
        begin = end


def _sample_lateness(one: ChartSlice, calls: QuerySet[Any]) -> None:
    for status in (Status.SUCCEEDED, Status.FAILED):
        rows = calls.filter(status=status).values_list("attempt", "due_at", "started_at")
        for attempt, due_at, started_at in rows[:MAX_LATENESS_SAMPLE]:
            if attempt == 1 and started_at is not None:
                late = (started_at - due_at) / timedelta(milliseconds=1)
                one.late[sum(late > bound for bound in LATENESS_BUCKETS_MS)] += 1


def _calls(tenant_id: uuid.UUID | None) -> QuerySet[Any]:
    """Of all tenants by their ids, because the indexes begin with these."""
    if tenant_id is not None:
        return ServiceCall.objects.for_tenant(tenant_id).order_by()
    return ServiceCall.across_tenants.filter(tenant_id__in=list_tenant_ids()).order_by()

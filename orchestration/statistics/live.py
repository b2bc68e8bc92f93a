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
from orchestration.statistics.charts import Slice
from orchestration.statistics.recent import BUCKETS_MS, backlog, oldest_overdue
from orchestration.statistics.rollup import OUTCOMES

# One more says "and more".
SAMPLE = 300
MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class LostCall:
    """Its attempt should have ended by then, whatever came of it."""

    tenant_id: uuid.UUID
    service_call_id: uuid.UUID
    name: str
    deadline_at: datetime


@dataclass(frozen=True, slots=True)
class Pulse:
    running: int
    backlog: dict[str, int]  # overdue, by HORIZONS, later
    oldest_overdue: timedelta
    lost: list[LostCall]
    lost_count: int

    @property
    def overdue(self) -> int:
        return self.backlog["overdue"]


def pulse(tenant_id: uuid.UUID | None, now: datetime) -> Pulse:
    calls = _calls(tenant_id)
    lost = calls.filter(status=Status.RUNNING, deadline_at__lt=now).order_by("deadline_at")
    named = lost.values_list("tenant_id", "service_call_id", "name", "deadline_at")[:MOST_NAMED]
    return Pulse(
        running=count_capped(calls.filter(status=Status.RUNNING)),
        backlog=backlog(calls.filter(status=Status.SCHEDULED), now, count_capped),
        oldest_overdue=oldest_overdue(list_tenant_ids() if tenant_id is None else [tenant_id], now),
        lost=[LostCall(*row) for row in named],
        lost_count=count_capped(lost),
    )


def has_calls(tenant_id: uuid.UUID | None) -> bool:
    return _calls(tenant_id).exists()


def add_latest(slices: Sequence[Slice], tenant_id: uuid.UUID | None, since: datetime, now: datetime) -> None:
    """To the slices into which they fall: calls that were due since, for as long as these are in no figures yet."""
    begin = since
    calls = _calls(tenant_id)
    for one in slices:
        if one.ends_at <= begin:
            continue
        end = min(one.ends_at, now)
        within = calls.filter(due_at__gte=begin, due_at__lt=end)
        counts: Counter[str] = Counter()
        for status, name in OUTCOMES.items():
            counts[name] = min(count_capped(within.filter(status=status)), MAX_COUNTED)
        one.outcomes.add(**counts)
        if counts.total():
            _sample_lateness(one, within)
        begin = end


def _sample_lateness(one: Slice, calls: QuerySet[Any]) -> None:
    for status in (Status.SUCCEEDED, Status.FAILED):
        rows = calls.filter(status=status).values_list("attempt", "due_at", "started_at")
        for attempt, due_at, started_at in rows[:SAMPLE]:
            if attempt == 1 and started_at is not None:
                late = (started_at - due_at) / timedelta(milliseconds=1)
                one.late[sum(late > bound for bound in BUCKETS_MS)] += 1


def _calls(tenant_id: uuid.UUID | None) -> QuerySet[Any]:
    """Of all tenants by their ids, because the indexes begin with these."""
    if tenant_id is not None:
        return ServiceCall.objects.for_tenant(tenant_id).order_by()
    return ServiceCall.across_tenants.filter(tenant_id__in=list_tenant_ids()).order_by()

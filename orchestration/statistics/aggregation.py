"""The SQL behind rollups: count calls that have ended by the minute or hour in which they were due.

The database groups them. On SQLite, Django's functions for dates are Python functions, which would take most of the time.
"""

from __future__ import annotations

import uuid
from bisect import bisect_left
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from django.db.models import Case, Count, QuerySet, When

from eventservice.db.sql import ElapsedSteps, TimestampPrefix
from orchestration.models import Resolution, ServiceCall
from orchestration.states import TERMINAL, Status

STEP = {Resolution.MINUTE: timedelta(minutes=1), Resolution.HOUR: timedelta(hours=1)}
# `2026-03-01 12:05`, or without the minutes.
PREFIX_LENGTH = {Resolution.MINUTE: 16, Resolution.HOUR: 13}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# Upper bounds. Rollups have a column for each, and one for what is later.
LATENESS_BUCKETS_MS = (5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 60_000)
# The statement groups lateness by this step; all bounds are multiples of it.
LATENESS_STEP_MS = 5
LATENESS_BOUNDS = [bound // LATENESS_STEP_MS for bound in LATENESS_BUCKETS_MS]
MAX_LATENESS_STEPS = LATENESS_BOUNDS[-1] + 1


@dataclass(slots=True)
class EndedCalls:
    """The outcomes of the calls that were due in one minute or hour."""

    ended: Counter[str] = field(default_factory=Counter)  # by status
    # How many first attempts started late, by LATENESS_BUCKETS_MS and beyond.
    late: list[int] = field(default_factory=lambda: [0] * (len(LATENESS_BUCKETS_MS) + 1))
    hosts: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))


def round_down(moment: datetime, step: timedelta) -> datetime:
    return EPOCH + (moment - EPOCH) // step * step


def round_up(moment: datetime, step: timedelta) -> datetime:
    return EPOCH - (EPOCH - moment) // step * step


def select_ended(tenant_id: uuid.UUID, begin: datetime, end: datetime) -> QuerySet[ServiceCall]:
    """Select the calls that were due then and have ended: nothing will change them again."""
    calls = ServiceCall.objects.for_tenant(tenant_id).order_by()
    return calls.filter(status__in=sorted(TERMINAL), due_at__gte=begin, due_at__lt=end)


def count_ended_calls(
    tenant_id: uuid.UUID, resolution: Resolution, begin: datetime, end: datetime
) -> dict[datetime, EndedCalls]:
    """Return the ended calls of each minute or hour in which any was due."""
    counts_by_start: defaultdict[datetime, EndedCalls] = defaultdict(EndedCalls)
    # `started_at` is that of the first attempt, `due_at` that of the last.
    lateness = ElapsedSteps("started_at", "due_at", step_ms=LATENESS_STEP_MS, max_steps=MAX_LATENESS_STEPS)
    steps = Case(When(attempt=1, then=lateness))
    groups = select_ended(tenant_id, begin, end).annotate(
        starts=TimestampPrefix("due_at", PREFIX_LENGTH[resolution]), steps=steps
    )
    rows = groups.values_list("starts", "status", "host", "steps").annotate(count=Count("*"))
    for starts, status, host, late, count in rows.iterator():
        found = counts_by_start[datetime.fromisoformat(starts).replace(tzinfo=UTC)]
        found.ended[status] += count
        found.hosts[host][status] += count
        if late is not None and status != Status.CANCELED:
            found.late[bisect_left(LATENESS_BOUNDS, late)] += count
    return dict(counts_by_start)

"""Counting calls that have ended, by the minute or the hour in which they were due.

The database groups, and as cheaply as each can: Django's own functions for dates are Python's on SQLite, and there
they would take most of the time.
"""

from __future__ import annotations

import uuid
from bisect import bisect_left
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db.models import Case, CharField, Count, F, Func, IntegerField, QuerySet, When

from orchestration.models import Resolution, ServiceCall
from orchestration.states import TERMINAL, Status
from orchestration.statistics.recent_sample import LATENESS_BUCKETS_MS

STEP = {Resolution.MINUTE: timedelta(minutes=1), Resolution.HOUR: timedelta(hours=1)}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# Lateness is grouped in steps of so many milliseconds, which all bounds are multiples of.
LATENESS_STEP_MS = 5
LATENESS_BOUNDS = [bound // LATENESS_STEP_MS for bound in LATENESS_BUCKETS_MS]
MAX_LATENESS_STEPS = LATENESS_BOUNDS[-1] + 1


@dataclass(slots=True)
class EndedCalls:
    ended: Counter[str] = field(default_factory=Counter)  # by status
    late: list[int] = field(default_factory=lambda: [0] * (len(LATENESS_BUCKETS_MS) + 1))
    hosts: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))


def round_down(moment: datetime, step: timedelta) -> datetime:
    return EPOCH + (moment - EPOCH) // step * step


def round_up(moment: datetime, step: timedelta) -> datetime:
    return EPOCH - (EPOCH - moment) // step * step


def select_ended(tenant_id: uuid.UUID, begin: datetime, end: datetime) -> QuerySet[Any]:
    """Calls that came to an end and were due then. Nothing more will ever become of them."""
    calls = ServiceCall.objects.for_tenant(tenant_id).order_by()
    return calls.filter(status__in=sorted(TERMINAL), due_at__gte=begin, due_at__lt=end)


def count_ended_calls(
    tenant_id: uuid.UUID, resolution: Resolution, begin: datetime, end: datetime
) -> dict[datetime, EndedCalls]:
    """By the minute or hour; where nothing ended there is none."""
    tallies: defaultdict[datetime, EndedCalls] = defaultdict(EndedCalls)
    # `started_at` is that of the first attempt, and `due_at` that of the last.
    steps = Case(When(attempt=1, then=_LateSteps("started_at", "due_at")))
    groups = select_ended(tenant_id, begin, end).annotate(
        starts=_STARTS[resolution](F("due_at")), steps=steps
    )
    rows = groups.values_list("starts", "status", "host", "steps").annotate(count=Count("*"))
    for starts, status, host, late, count in rows.iterator():
        found = tallies[datetime.fromisoformat(starts).replace(tzinfo=UTC)]
        found.ended[status] += count
        found.hosts[host][status] += count
        if late is not None and status != Status.CANCELED:
            found.late[bisect_left(LATENESS_BOUNDS, late)] += count
    return dict(tallies)


class _Starts(Func):
    """The beginning of a moment's text in UTC: `2026-03-01 12:05`, or without the minutes."""

    arity = 1
    output_field = CharField()
    letters = 16

    def _as(self, template: str, compiler: Any, connection: Any) -> Any:
        return super().as_sql(compiler, connection, template=template.replace("#", str(self.letters)))

    def as_sqlite(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        return self._as("SUBSTR(%(expressions)s, 1, #)", compiler, connection)

    def as_postgresql(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        return self._as("LEFT(CAST(%(expressions)s AT TIME ZONE 'UTC' AS text), #)", compiler, connection)

    def as_mysql(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        return self._as("LEFT(CAST(%(expressions)s AS CHAR), #)", compiler, connection)


class _StartsHour(_Starts):
    letters = 13


_STARTS = {Resolution.MINUTE: _Starts, Resolution.HOUR: _StartsHour}


class _LateSteps(Func):
    """From the second to the first, in steps that have begun; no more than MOST_STEPS. SQLite's to the millisecond."""

    arity = 2
    output_field = IntegerField()
    arg_joiner = " - "

    def as_sqlite(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        days = "JULIANDAY(%(expressions)s)"
        steps = f"(CAST(ROUND(({days}) * 86400000) AS INTEGER) + {LATENESS_STEP_MS - 1}) / {LATENESS_STEP_MS}"
        template = f"MIN({MAX_LATENESS_STEPS}, MAX(0, {steps}))"
        return self.as_sql(compiler, connection, template=template, arg_joiner=") - JULIANDAY(")

    def as_postgresql(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        steps = f"CEIL(EXTRACT(EPOCH FROM (%(expressions)s)) * {1000 // LATENESS_STEP_MS})"
        template = f"CAST(LEAST({MAX_LATENESS_STEPS}, GREATEST(0, {steps})) AS integer)"
        return self.as_sql(compiler, connection, template=template)

    def as_mysql(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        steps = f"CEIL(TIMESTAMPDIFF(MICROSECOND, %(expressions)s) / -{LATENESS_STEP_MS * 1000})"
        template = f"CAST(LEAST({MAX_LATENESS_STEPS}, GREATEST(0, {steps})) AS SIGNED)"
        return self.as_sql(compiler, connection, template=template, arg_joiner=", ")

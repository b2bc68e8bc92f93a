"""The data of the charts. It is read from rollups, never from a month of calls, and completed by the latest minutes."""

from __future__ import annotations

import math
import uuid
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db.models import F, Min, Model, QuerySet, Sum

from eventservice.db.bounded_count import MAX_COUNTED, count_capped
from orchestration.models import CallRollup, HostRollup, Resolution, RollupMark, ServiceCall
from orchestration.states import Status
from orchestration.statistics.aggregation import LATENESS_BUCKETS_MS, STEP, round_down, round_up
from orchestration.statistics.live_counts import select_calls
from orchestration.statistics.rollup import COUNTERS, ENDED, LATENESS_COLUMNS, OUTCOME_COLUMNS

MINUTE, HOUR = Resolution.MINUTE, Resolution.HOUR
# What was due since the last rollup: sampled for each slice and status.
MAX_LATENESS_SAMPLE = 300
# A chart shows this many tenants or hosts; the others are added up.
MAX_SHARES = 8


@dataclass(frozen=True, slots=True)
class ChartSpan:
    """A time range that ends now, in slices. A chart shows one bar for each slice."""

    name: str
    length: timedelta
    slice: timedelta
    resolution: Resolution
    # For shares of hosts. They have many rows, so long ranges read hours.
    hosts: Resolution
    # How far apart the times below a chart are: no more than six fit on a phone.
    label_interval: timedelta


SPANS = {
    span.name: span
    for span in (
        ChartSpan("15m", timedelta(minutes=15), timedelta(minutes=1), MINUTE, MINUTE, timedelta(minutes=3)),
        ChartSpan("1h", timedelta(hours=1), timedelta(minutes=1), MINUTE, MINUTE, timedelta(minutes=10)),
        ChartSpan("6h", timedelta(hours=6), timedelta(minutes=10), MINUTE, MINUTE, timedelta(hours=1)),
        ChartSpan("24h", timedelta(hours=24), timedelta(minutes=30), MINUTE, HOUR, timedelta(hours=4)),
        ChartSpan("7d", timedelta(days=7), timedelta(hours=3), HOUR, HOUR, timedelta(days=1)),
        ChartSpan("30d", timedelta(days=30), timedelta(hours=12), HOUR, HOUR, timedelta(days=5)),
    )
}


@dataclass(slots=True)
class Outcomes:
    succeeded: int = 0
    failed: int = 0
    canceled: int = 0

    @property
    def total(self) -> int:
        return self.succeeded + self.failed + self.canceled

    @property
    def success(self) -> float | None:
        """The share of successes among the calls that were not canceled."""
        ended = self.succeeded + self.failed
        return self.succeeded / ended if ended else None

    def add(self, succeeded: int, failed: int, canceled: int) -> None:
        self.succeeded += int(succeeded)
        self.failed += int(failed)
        self.canceled += int(canceled)


@dataclass(slots=True)
class ChartSlice:
    starts_at: datetime
    ends_at: datetime
    outcomes: Outcomes = field(default_factory=Outcomes)
    late: list[int] = field(
        default_factory=lambda: [0] * len(LATENESS_COLUMNS)
    )  # by LATENESS_BUCKETS_MS, and beyond

    def lateness(self, share: float) -> float | None:
        return estimate_lateness(self.late, share)


@dataclass(frozen=True, slots=True)
class ChartShare:
    """The outcomes of one tenant or host; with `key` None, those of all others."""

    key: Any
    outcomes: Outcomes


@dataclass(frozen=True, slots=True)
class FailingHost:
    tenant_id: uuid.UUID
    host: str
    outcomes: Outcomes


@dataclass(frozen=True, slots=True)
class Coverage:
    """How far the rollups reach: they contain what had ended by `until`. None: nothing has been counted yet."""

    until: datetime | None
    # Calls that were due before this time are not in the rollups yet.
    history_until: datetime | None


def read_coverage(tenant_id: uuid.UUID | None) -> Coverage:
    marks = _select_rows(RollupMark, tenant_id).aggregate(
        until=Min("counted_until"), history=Min("history_until")
    )
    return Coverage(marks["until"], marks["history"])


def read_slices(tenant_id: uuid.UUID | None, span: ChartSpan, now: datetime) -> list[ChartSlice]:
    """Return all slices of the span, empty ones too. The last one is not over."""
    end = round_up(now, span.slice)
    begin = end - span.length
    found = [
        ChartSlice(begin + n * span.slice, begin + (n + 1) * span.slice)
        for n in range(span.length // span.slice)
    ]
    rows = _select_range(CallRollup, tenant_id, span.resolution, begin, end).values_list("starts_at")
    for starts_at, *counts in rows.annotate(*(Sum(name) for name in COUNTERS)):
        one = found[(starts_at - begin) // span.slice]
        one.outcomes.add(*counts[: len(OUTCOME_COLUMNS)])
        for bucket, count in enumerate(counts[len(OUTCOME_COLUMNS) :]):
            one.late[bucket] += int(count)
    return found


def add_uncounted(
    slices: Sequence[ChartSlice], tenant_id: uuid.UUID | None, since: datetime, now: datetime
) -> None:
    """Add the calls that were due since then to their slices: they are not in the rollups yet."""
    begin = since
    calls = select_calls(tenant_id)
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


def _sample_lateness(one: ChartSlice, calls: QuerySet[ServiceCall]) -> None:
    for status in (Status.SUCCEEDED, Status.FAILED):
        rows = calls.filter(status=status).values_list("attempt", "due_at", "started_at")
        for attempt, due_at, started_at in rows[:MAX_LATENESS_SAMPLE]:
            if attempt == 1 and started_at is not None:
                late = (started_at - due_at) / timedelta(milliseconds=1)
                one.late[bisect_left(LATENESS_BUCKETS_MS, late)] += 1


def list_tenant_shares(span: ChartSpan, now: datetime) -> list[ChartShare]:
    rows = _select_range(CallRollup, None, span.resolution, *_compute_range(span, now))
    return _compute_shares(rows, "tenant_id", _sum_outcomes(rows))


def list_host_shares(tenant_id: uuid.UUID | None, span: ChartSpan, now: datetime) -> list[ChartShare]:
    begin, end = _compute_range(span, now)
    begin = round_down(begin, STEP[span.hosts])
    rows = _select_range(HostRollup, tenant_id, span.hosts, begin, end)
    return _compute_shares(
        rows, "host", _sum_outcomes(_select_range(CallRollup, tenant_id, span.hosts, begin, end))
    )


def list_hosts_with_failures(
    tenant_id: uuid.UUID | None,
    since: datetime,
    now: datetime,
    *,
    min_failed: int,
    limit: int,
) -> list[FailingHost]:
    """Return the hosts where at least `min_failed` calls failed.

    Those with the largest share come first, among equals those with the most failures.
    """
    rows = _select_range(HostRollup, tenant_id, MINUTE, round_down(since, STEP[MINUTE]), now)
    sums = rows.values_list("tenant_id", "host").annotate(
        good=Sum("succeeded"), bad=Sum("failed"), gone=Sum("canceled")
    )
    failing = sums.filter(bad__gte=min_failed).order_by(
        (F("bad") * 1.0 / (F("good") + F("bad"))).desc(), "-bad", "host"
    )
    return [
        FailingHost(tenant, host, Outcomes(int(good), int(bad), int(gone)))
        for tenant, host, good, bad, gone in failing[:limit]
    ]


def count_succeeded_by_host(
    hosts: Collection[tuple[uuid.UUID, str]], since: datetime, now: datetime
) -> dict[tuple[uuid.UUID, str], int]:
    """Return how many calls to each of these hosts of tenants succeeded, as far as rollups keep the host."""
    found: dict[tuple[uuid.UUID, str], int] = {}
    for tenant_id in {tenant_id for tenant_id, _ in hosts}:
        rows = _select_range(HostRollup, tenant_id, MINUTE, round_down(since, STEP[MINUTE]), now)
        names = [host for owner, host in hosts if owner == tenant_id]
        sums = rows.filter(host__in=names).values_list("host").annotate(good=Sum("succeeded"))
        found |= {(tenant_id, host): int(good) for host, good in sums}
    return found


def estimate_lateness(late: Sequence[int], share: float) -> float | None:
    """Estimate a quantile of lateness in milliseconds, by interpolation within its bucket. Return infinity beyond the
    last bound, and None if there are no counts."""
    wanted = sum(late) * share
    if not wanted:
        return None
    lower, before = 0, 0
    for bound, count in zip(LATENESS_BUCKETS_MS, late, strict=False):
        if count and before + count >= wanted:
            return lower + (bound - lower) * (wanted - before) / count
        lower, before = bound, before + count
    return math.inf


def _compute_range(span: ChartSpan, now: datetime) -> tuple[datetime, datetime]:
    end = round_up(now, span.slice)
    return end - span.length, end


def _select_rows(model: Any, tenant_id: uuid.UUID | None) -> QuerySet[Model]:
    rows = model.across_tenants.all() if tenant_id is None else model.objects.for_tenant(tenant_id)
    return rows.order_by()  # type: ignore[no-any-return]


def _select_range(
    model: Any, tenant_id: uuid.UUID | None, resolution: Resolution, begin: datetime, end: datetime
) -> QuerySet[Model]:
    return _select_rows(model, tenant_id).filter(
        resolution=resolution, starts_at__gte=begin, starts_at__lt=end
    )


def _sum_outcomes(rows: QuerySet[Model]) -> Outcomes:
    sums = rows.aggregate(**{name: Sum(name, default=0) for name in OUTCOME_COLUMNS.values()})
    return Outcomes(**{name: int(value) for name, value in sums.items()})


def _compute_shares(rows: QuerySet[Model], key: str, whole: Outcomes) -> list[ChartShare]:
    """Return the largest shares, and what is left of `whole`."""
    sums = rows.values_list(key).annotate(*(Sum(name) for name in OUTCOME_COLUMNS.values()), total=Sum(ENDED))
    shares, rest = [], Outcomes(whole.succeeded, whole.failed, whole.canceled)
    for value, succeeded, failed, canceled, _ in sums.order_by("-total", key)[:MAX_SHARES]:
        shares.append(ChartShare(value, Outcomes(int(succeeded), int(failed), int(canceled))))
        rest.add(-succeeded, -failed, -canceled)
    return [*shares, ChartShare(None, rest)] if rest.total > 0 else shares

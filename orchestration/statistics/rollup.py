"""The figures that charts are drawn from: what has become of the calls that were due in each minute and each hour.

A chart of a month cannot read a month's calls, so they are counted as they end. Each round (`roll_up`) goes through
the tenants, one piece of work at a time, for as long as it may:

1. *Forward*: the minutes since the last round, which are then *covered*. Those that have calls which are still
   Scheduled or Running are noted as open.
2. *Again*: covered minutes that are open, when more of their calls have ended. With the last of these they close:
   a call that has ended never moves, so that a closed minute is final, and retention may take the calls.
3. *Back*: what was there before the first round, hour by hour into the past.

An hour is the sum of its minutes, which are kept for a day. Two rounds at once do no harm: a piece is written only
if nobody else has written one of the same tenant since its mark was read.
"""

from __future__ import annotations

import time
import uuid
from collections import deque
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from django.db import DatabaseError, transaction
from django.db.models import Count, F, Q, Sum

from eventservice.db.bulk import insert_rows
from eventservice.db.now import db_now
from eventservice.kernel.logging import get_logger
from eventservice.tenants.directory import list_tenant_ids
from orchestration.models import CallRollup, HostRollup, Resolution, RollupMark, ServiceCall
from orchestration.states import LIVE, TERMINAL, Status
from orchestration.statistics.aggregation import (
    STEP,
    EndedCalls,
    count_ended_calls,
    round_down,
    round_up,
    select_ended,
)
from orchestration.statistics.recent_sample import LATENESS_BUCKETS_MS

log = get_logger(__name__)

MINUTE, HOUR = Resolution.MINUTE, Resolution.HOUR
MINUTES_KEPT = timedelta(hours=25)
HOURS_KEPT = timedelta(days=90)
# How far back the first round goes.
HISTORY_COUNTED = timedelta(days=30)
# A minute is covered so long after its end: what was submitted in it has been committed by then.
SETTLING_TIME = timedelta(seconds=15)
# A piece of work has about so many calls, unless one minute has more.
CHUNK_CALLS = 20_000
# Open minutes of a tenant that one round looks at; a large one waits until it is worth its price.
MAX_OPEN_PER_ROUND = 100
CALLS_PER_MINUTE_WAITED = 50_000
# An hour or minute keeps so many hosts that failed most, and so many that were called most.
MAX_RANKED_HOSTS = 10

OUTCOME_COLUMNS = {Status.SUCCEEDED: "succeeded", Status.FAILED: "failed", Status.CANCELED: "canceled"}
LATENESS_COLUMNS = tuple(f"late_{bound}" for bound in (*LATENESS_BUCKETS_MS, "more"))
COUNTERS = (*OUTCOME_COLUMNS.values(), *LATENESS_COLUMNS)
KEY = ("tenant_id", "resolution", "starts_at")
ENDED = F("succeeded") + F("failed") + F("canceled")


class OvertakenError(Exception):
    """Another round has written figures of this tenant; what was counted here is dropped."""


def roll_up(seconds: float) -> bool:
    """One round of that length, or a little longer; whether all that had ended is in."""
    deadline = time.monotonic() + seconds
    now = db_now()
    marks = _read_marks(now)
    minutes_from = _oldest_minute_kept(now, marks)
    counts = [_TenantRound(mark, now, minutes_from) for mark in marks]
    jobs = deque((count, count.pieces()) for count in counts)
    while jobs:
        count, pieces = jobs.popleft()
        if _run_piece(count, pieces):
            jobs.append((count, pieces))
        # At the end: a round that has had no time for any would have none the next time.
        if time.monotonic() >= deadline:
            break
    quiet = [count.mark.pk for count in counts if count.quiet]
    _advance_quiet(quiet, now)
    _prune_rollups(MINUTE, minutes_from)
    _prune_rollups(HOUR, now - HOURS_KEPT)
    return not jobs


def forget_rollups(tenant_id: uuid.UUID) -> None:
    """Let the next rounds count all calls that are there: for whoever writes calls into the past."""
    with transaction.atomic():
        for model in (RollupMark, CallRollup, HostRollup):
            model.objects.for_tenant(tenant_id).delete()


def _read_marks(now: datetime) -> list[Any]:
    """Those first that are furthest behind."""
    known = set(RollupMark.across_tenants.values_list("pk", flat=True))
    begin = round_down(now - MINUTES_KEPT, STEP[HOUR])
    fresh = [
        RollupMark(tenant_id=tenant_id, covered_until=begin, counted_until=begin, history_until=begin)
        for tenant_id in list_tenant_ids()
        if tenant_id not in known
    ]
    RollupMark.objects.bulk_create(fresh, ignore_conflicts=True)
    return list(RollupMark.across_tenants.order_by("counted_until", "pk"))


def _oldest_minute_kept(now: datetime, marks: list[Any]) -> datetime:
    """Minutes before this have been summed, and may go; these are whole hours."""
    return round_down(min([now - MINUTES_KEPT, *(mark.covered_until for mark in marks)]), STEP[HOUR])


def _run_piece(count: _TenantRound, pieces: Iterator[None]) -> bool:
    """Whether there may be another."""
    try:
        return next(pieces, count) is not count
    except OvertakenError:
        return False
    except DatabaseError:
        log.exception("rollup_troubled", tenant_id=str(count.mark.pk))
        return False


def _advance_quiet(quiet: list[uuid.UUID], now: datetime) -> None:
    """Where nothing has ended and nothing was about to, in one go."""
    marks, settled = RollupMark.across_tenants.filter(pk__in=quiet), _settled(now)
    marks.update(counted_until=now)
    marks.filter(covered_until__lt=settled).update(covered_until=settled)


def _settled(now: datetime) -> datetime:
    return round_down(now - SETTLING_TIME, STEP[MINUTE])


def _prune_rollups(resolution: Resolution, before: datetime) -> None:
    for model in (CallRollup, HostRollup):
        model.across_tenants.filter(resolution=resolution, starts_at__lt=before).delete()


class _TenantRound:
    """One tenant's share of a round."""

    def __init__(self, mark: Any, now: datetime, minutes_from: datetime) -> None:
        self.mark = mark
        self.now = now
        self.minutes_from = minutes_from
        self.quiet = False

    def pieces(self) -> Iterator[None]:
        yield from self._forward()
        yield from self._again()
        yield from self._back()

    def _forward(self) -> Iterator[None]:
        begin, horizon = self.mark.covered_until, round_up(self.now, STEP[MINUTE])
        settled = _settled(self.now)
        if not self._has_grown(MINUTE, begin, horizon) and not self._is_unsettled(begin, settled):
            self.quiet = True
            return
        while begin < horizon:
            end = self._end_of_chunk(begin, horizon)
            self._count(
                MINUTE, begin, end,
                covered_until=max(self.mark.covered_until, min(end, settled)),
                counted_until=self.now if end == horizon else max(self.mark.counted_until, end),
            )  # fmt: skip
            yield
            begin = end

    def _is_unsettled(self, begin: datetime, settled: datetime) -> bool:
        """Whether these minutes have figures, or calls that are under way, and so are to be covered one by one."""
        return self._rows(CallRollup, MINUTE, begin, settled).exists() or bool(
            self._live(MINUTE, begin, settled)
        )

    def _end_of_chunk(self, begin: datetime, horizon: datetime) -> datetime:
        calls = ServiceCall.objects.for_tenant(self.mark.pk).filter(due_at__gte=begin, due_at__lt=horizon)
        for status in sorted(TERMINAL):
            dues = calls.filter(status=status).order_by("due_at").values_list("due_at", flat=True)
            for due_at in dues[CHUNK_CALLS : CHUNK_CALLS + 1]:
                horizon = min(horizon, max(round_down(due_at, STEP[MINUTE]), begin + STEP[MINUTE]))
        return horizon

    def _again(self) -> Iterator[None]:
        for resolution, starts_at, count, counted_at in self._open_ones():
            if self.now - counted_at < timedelta(minutes=1) * count / CALLS_PER_MINUTE_WAITED:
                continue
            end = starts_at + STEP[resolution]
            # First what is live: what ends meanwhile is then counted, or looked for again.
            is_open = bool(self._live(resolution, starts_at, end))
            if self._has_grown(resolution, starts_at, end):
                self._count(resolution, starts_at, end)
            else:
                row = CallRollup.objects.for_tenant(self.mark.pk).filter(
                    resolution=resolution, starts_at=starts_at
                )
                row.update(is_open=is_open, counted_at=self.now)
            yield

    def _open_ones(self) -> list[Any]:
        minutes = Q(starts_at__gte=self.minutes_from, starts_at__lt=self.mark.covered_until)
        rows = CallRollup.objects.for_tenant(self.mark.pk).filter(
            # Hours follow their minutes, while there are any.
            Q(minutes, resolution=MINUTE) | Q(resolution=HOUR, starts_at__lt=self.minutes_from),
            is_open=True,
        )
        found = rows.order_by("counted_at").values_list("resolution", "starts_at", ENDED, "counted_at")
        return [(Resolution(resolution), *rest) for resolution, *rest in found[:MAX_OPEN_PER_ROUND]]

    def _back(self) -> Iterator[None]:
        while self.mark.history_until is not None:
            last = self._last_due(self.now - HISTORY_COUNTED, self.mark.history_until)
            if last is None:
                with transaction.atomic():
                    self._claim(history_until=None)
                return
            begin = round_down(last, STEP[HOUR])
            self._count(HOUR, begin, begin + STEP[HOUR], history_until=begin)
            yield

    def _last_due(self, begin: datetime, end: datetime) -> datetime | None:
        calls = ServiceCall.objects.for_tenant(self.mark.pk).filter(due_at__gte=begin, due_at__lt=end)
        latest = calls.order_by("-due_at").values_list("due_at", flat=True)
        return max((due for status in Status for due in latest.filter(status=status)[:1]), default=None)

    # --- one piece --------------------------------------------------------------------------------------------

    def _has_grown(self, resolution: Resolution, begin: datetime, end: datetime) -> bool:
        """Whether more calls have ended than are counted: indexes tell. Fewer means that some were deleted."""
        rows = self._rows(CallRollup, resolution, begin, end)
        known = int(rows.aggregate(known=Sum(ENDED))["known"] or 0)
        return select_ended(self.mark.pk, begin, end).values_list("tenant_id")[: known + 1].count() > known

    def _live(self, resolution: Resolution, begin: datetime, end: datetime) -> set[datetime]:
        """The minutes or hours of calls that have not ended: a look at the index for each."""
        found = set()
        calls = ServiceCall.objects.for_tenant(self.mark.pk).order_by("due_at").filter(due_at__lt=end)
        dues = calls.values_list("due_at", flat=True)
        for status in sorted(LIVE):
            after = begin
            while due_at := dues.filter(status=status, due_at__gte=after).first():
                found.add(round_down(due_at, STEP[resolution]))
                after = round_down(due_at, STEP[resolution]) + STEP[resolution]
        return found

    def _count(self, resolution: Resolution, begin: datetime, end: datetime, **moved: Any) -> None:
        # First what is live: what ends meanwhile is then counted, or looked for again.
        live = self._live(resolution, begin, end)
        tallies = count_ended_calls(self.mark.pk, resolution, begin, end)
        tallies |= {starts_at: EndedCalls() for starts_at in live - tallies.keys()}
        with transaction.atomic():
            self._claim(**moved)
            self._replace(resolution, begin, end, tallies, live)
            for hour in {round_down(starts_at, STEP[HOUR]) for starts_at in tallies if resolution == MINUTE}:
                self._sum_minutes(hour)

    def _claim(self, **moved: Any) -> None:
        mark = RollupMark.objects.for_tenant(self.mark.pk).filter(version=self.mark.version)
        if not mark.update(version=F("version") + 1, **moved):
            raise OvertakenError
        self.mark.version += 1
        for name, value in moved.items():
            setattr(self.mark, name, value)

    def _replace(
        self,
        resolution: Resolution,
        begin: datetime,
        end: datetime,
        tallies: Mapping[datetime, EndedCalls],
        live: set[datetime],
    ) -> None:
        for model in (CallRollup, HostRollup):
            self._rows(model, resolution, begin, end).delete()
        rows, hosts = [], []
        for starts_at, found in tallies.items():
            key = (self.mark.pk, resolution.value, starts_at)
            outcomes = [found.ended[status] for status in OUTCOME_COLUMNS]
            rows.append((*key, *outcomes, *found.late, starts_at in live, self.now))
            by_host = {host: [by[status] for status in OUTCOME_COLUMNS] for host, by in found.hosts.items()}
            hosts += [(*key, host, *by_host[host]) for host in _select_hosts(by_host)]
        insert_rows(CallRollup, (*KEY, *COUNTERS, "is_open", "counted_at"), rows)
        insert_rows(HostRollup, (*KEY, "host", *OUTCOME_COLUMNS.values()), hosts)

    def _sum_minutes(self, hour: datetime) -> None:
        whole = (hour, hour + STEP[HOUR])
        minutes = self._rows(CallRollup, MINUTE, *whole)
        sums = minutes.aggregate(
            **{name: Sum(name) for name in COUNTERS},
            open_ones=Count("starts_at", filter=Q(is_open=True)),
        )
        key = (self.mark.pk, HOUR.value, hour)
        counters = [int(sums[name]) for name in COUNTERS]
        by_host = {
            host: [int(count) for count in counts]
            for host, *counts in self._rows(HostRollup, MINUTE, *whole)
            .values_list("host")
            .annotate(*(Sum(name) for name in OUTCOME_COLUMNS.values()))
        }
        for model in (CallRollup, HostRollup):
            self._rows(model, HOUR, *whole).delete()
        row = (*key, *counters, sums["open_ones"] > 0, self.now)
        insert_rows(CallRollup, (*KEY, *COUNTERS, "is_open", "counted_at"), [row])
        hosts = [(*key, host, *by_host[host]) for host in _select_hosts(by_host)]
        insert_rows(HostRollup, (*KEY, "host", *OUTCOME_COLUMNS.values()), hosts)

    def _rows(self, model: Any, resolution: Resolution, begin: datetime, end: datetime) -> Any:
        rows = model.objects.for_tenant(self.mark.pk)
        return rows.filter(resolution=resolution, starts_at__gte=begin, starts_at__lt=end)


def _select_hosts(by_host: Mapping[str, list[int]]) -> list[str]:
    """By their [succeeded, failed, canceled]."""
    failing = sorted((host for host in by_host if by_host[host][1]), key=lambda host: -by_host[host][1])
    busiest = sorted(by_host, key=lambda host: -sum(by_host[host]))
    return sorted({*failing[:MAX_RANKED_HOSTS], *busiest[:MAX_RANKED_HOSTS]})

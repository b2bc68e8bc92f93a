"""The job that keeps rollups: how the calls that were due in each minute and each hour ended.

A chart of a month cannot read a month's calls, so they are counted as they end. Each round (`roll_up`) goes through
the tenants, one piece of work at a time, until its time is up:

1. *Forward*: count the minutes since the last round. They are then *covered*. Minutes with calls that are still
   Scheduled or Running are marked as open.
2. *Again*: count open minutes again when more of their calls have ended. When the last one has, the minute closes:
   a call that has ended never changes, so a closed minute is final, and retention may delete the calls.
3. *Back*: count what was there before the first round, hour by hour into the past.

An hour is the sum of its minutes, which are kept for a day. Two rounds may run at once: a piece is written only if no
other round has written one of the same tenant since the tenant's mark was read.
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
    LATENESS_BUCKETS_MS,
    STEP,
    EndedCalls,
    count_ended_calls,
    round_down,
    round_up,
    select_ended,
)

log = get_logger(__name__)

MINUTE, HOUR = Resolution.MINUTE, Resolution.HOUR
MINUTE_RETENTION = timedelta(hours=25)
HOUR_RETENTION = timedelta(days=90)
# How far back history is counted.
MAX_HISTORY = timedelta(days=30)
# A minute is covered this long after its end: whatever was submitted in it has been committed by then.
SETTLING_TIME = timedelta(seconds=15)
# The clock was set back at most this long before a round notices.
MAX_RECOUNTED = timedelta(minutes=10)
# The approximate number of calls in a piece of work. One minute may have more.
CHUNK_CALLS = 20_000
# How many open minutes of a tenant one round looks at. The more calls a minute has, the longer it waits to be counted
# again: a minute for each CALLS_PER_MINUTE_WAITED calls.
MAX_OPEN_PER_ROUND = 100
CALLS_PER_MINUTE_WAITED = 50_000
# A minute or hour keeps the hosts with the most failures and those with the most calls: this many of each.
MAX_RANKED_HOSTS = 10

OUTCOME_COLUMNS = {Status.SUCCEEDED: "succeeded", Status.FAILED: "failed", Status.CANCELED: "canceled"}
LATENESS_COLUMNS = tuple(f"late_{bound}" for bound in (*LATENESS_BUCKETS_MS, "more"))
COUNTERS = (*OUTCOME_COLUMNS.values(), *LATENESS_COLUMNS)
KEY = ("tenant_id", "resolution", "starts_at")
ENDED = F("succeeded") + F("failed") + F("canceled")


class OvertakenError(Exception):
    """Raised when another round has written rollups of this tenant meanwhile: what was counted here is dropped."""


def roll_up(seconds: float) -> bool:
    """Run one round of about that length. Return whether everything that had ended is counted."""
    deadline = time.monotonic() + seconds
    now = db_now()
    marks = _read_marks(now)
    minutes_from = _find_oldest_minute_kept(now, marks)
    rounds = [_TenantRound(mark, now, minutes_from) for mark in marks]
    jobs = deque((one, one.iter_pieces()) for one in rounds)
    while jobs:
        tenant_round, pieces = jobs.popleft()
        if _run_piece(tenant_round, pieces):
            jobs.append((tenant_round, pieces))
        # Checked after the piece: a round always does some work, however short its time is.
        if time.monotonic() >= deadline:
            break
    quiet = [one.mark.pk for one in rounds if one.quiet]
    _advance_quiet(quiet, now)
    _prune_rollups(MINUTE, minutes_from)
    _prune_rollups(HOUR, now - HOUR_RETENTION)
    return not jobs


def forget_rollups(tenant_id: uuid.UUID) -> None:
    """Delete a tenant's rollups, so that the next rounds count all its calls: for calls written into the past."""
    with transaction.atomic():
        for model in (RollupMark, CallRollup, HostRollup):
            model.objects.for_tenant(tenant_id).delete()


def _read_marks(now: datetime) -> list[RollupMark]:
    """Return the tenants' marks, those furthest behind first. New tenants get one."""
    known = set(RollupMark.across_tenants.values_list("pk", flat=True))
    begin = round_down(now - MINUTE_RETENTION, STEP[HOUR])
    fresh = [
        RollupMark(tenant_id=tenant_id, covered_until=begin, counted_until=begin, history_until=begin)
        for tenant_id in list_tenant_ids()
        if tenant_id not in known
    ]
    RollupMark.objects.bulk_create(fresh, ignore_conflicts=True)
    # The clock was set back: the minutes that come again are counted again.
    ahead = RollupMark.across_tenants.filter(covered_until__gt=now)
    again_from = round_down(now - MAX_RECOUNTED, STEP[MINUTE])
    ahead.update(covered_until=again_from, counted_until=again_from, version=F("version") + 1)
    return list(RollupMark.across_tenants.order_by("counted_until", "pk"))


def _find_oldest_minute_kept(now: datetime, marks: list[RollupMark]) -> datetime:
    """Return the hour before which all minutes have been summed up, and may be deleted."""
    return round_down(min([now - MINUTE_RETENTION, *(mark.covered_until for mark in marks)]), STEP[HOUR])


def _run_piece(tenant_round: _TenantRound, pieces: Iterator[None]) -> bool:
    """Run one piece of work. Return whether there may be more."""
    try:
        return next(pieces, tenant_round) is not tenant_round
    except OvertakenError:
        return False
    except DatabaseError:
        log.exception("rollup_troubled", tenant_id=str(tenant_round.mark.pk))
        return False


def _advance_quiet(quiet: list[uuid.UUID], now: datetime) -> None:
    """Move the marks of all tenants that have nothing to count, in one statement."""
    marks, settled = RollupMark.across_tenants.filter(pk__in=quiet), _compute_settled(now)
    marks.update(counted_until=now)
    marks.filter(covered_until__lt=settled).update(covered_until=settled)


def _compute_settled(now: datetime) -> datetime:
    return round_down(now - SETTLING_TIME, STEP[MINUTE])


def _prune_rollups(resolution: Resolution, before: datetime) -> None:
    for model in (CallRollup, HostRollup):
        model.across_tenants.filter(resolution=resolution, starts_at__lt=before).delete()


class _TenantRound:
    """The work of one round for one tenant."""

    def __init__(self, mark: RollupMark, now: datetime, minutes_from: datetime) -> None:
        self.mark = mark
        self.now = now
        self.minutes_from = minutes_from
        self.quiet = False

    def iter_pieces(self) -> Iterator[None]:
        yield from self._forward()
        yield from self._recount_open()
        yield from self._back()

    def _forward(self) -> Iterator[None]:
        begin, horizon = self.mark.covered_until, round_up(self.now, STEP[MINUTE])
        settled = _compute_settled(self.now)
        if not self._has_grown(MINUTE, begin, horizon) and not self._is_unsettled(begin, settled):
            self.quiet = True
            return
        while begin < horizon:
            end = self._find_end_of_chunk(begin, horizon)
            self._count(
                MINUTE, begin, end,
                covered_until=max(self.mark.covered_until, min(end, settled)),
                counted_until=self.now if end == horizon else max(self.mark.counted_until, end),
            )  # fmt: skip
            yield
            begin = end

    def _is_unsettled(self, begin: datetime, settled: datetime) -> bool:
        """Return whether these minutes have rollups or live calls, and so have to be covered one by one."""
        return self._select(CallRollup, MINUTE, begin, settled).exists() or bool(
            self._find_live(MINUTE, begin, settled)
        )

    def _find_end_of_chunk(self, begin: datetime, horizon: datetime) -> datetime:
        calls = ServiceCall.objects.for_tenant(self.mark.pk).filter(due_at__gte=begin, due_at__lt=horizon)
        for status in sorted(TERMINAL):
            dues = calls.filter(status=status).order_by("due_at").values_list("due_at", flat=True)
            for due_at in dues[CHUNK_CALLS : CHUNK_CALLS + 1]:
                horizon = min(horizon, max(round_down(due_at, STEP[MINUTE]), begin + STEP[MINUTE]))
        return horizon

    def _recount_open(self) -> Iterator[None]:
        for resolution, starts_at, count, counted_at in self._list_open():
            if self.now - counted_at < timedelta(minutes=1) * count / CALLS_PER_MINUTE_WAITED:
                continue
            end = starts_at + STEP[resolution]
            # Live calls first: what ends in between is either counted now or, as its minute stays open, later.
            is_open = bool(self._find_live(resolution, starts_at, end))
            if self._has_grown(resolution, starts_at, end):
                self._count(resolution, starts_at, end)
            else:
                row = CallRollup.objects.for_tenant(self.mark.pk).filter(
                    resolution=resolution, starts_at=starts_at
                )
                row.update(is_open=is_open, counted_at=self.now)
            yield

    def _list_open(self) -> list[Any]:
        minutes = Q(starts_at__gte=self.minutes_from, starts_at__lt=self.mark.covered_until)
        rows = CallRollup.objects.for_tenant(self.mark.pk).filter(
            # While an hour has minutes, it is computed from them.
            Q(minutes, resolution=MINUTE) | Q(resolution=HOUR, starts_at__lt=self.minutes_from),
            is_open=True,
        )
        found = rows.order_by("counted_at").values_list("resolution", "starts_at", ENDED, "counted_at")
        return [(Resolution(resolution), *rest) for resolution, *rest in found[:MAX_OPEN_PER_ROUND]]

    def _back(self) -> Iterator[None]:
        while self.mark.history_until is not None:
            last = self._find_last_due(self.now - MAX_HISTORY, self.mark.history_until)
            if last is None:
                with transaction.atomic():
                    self._claim(history_until=None)
                return
            begin = round_down(last, STEP[HOUR])
            self._count(HOUR, begin, begin + STEP[HOUR], history_until=begin)
            yield

    def _find_last_due(self, begin: datetime, end: datetime) -> datetime | None:
        calls = ServiceCall.objects.for_tenant(self.mark.pk).filter(due_at__gte=begin, due_at__lt=end)
        latest = calls.order_by("-due_at").values_list("due_at", flat=True)
        return max((due for status in Status for due in latest.filter(status=status)[:1]), default=None)

    # --- one piece --------------------------------------------------------------------------------------------

    def _has_grown(self, resolution: Resolution, begin: datetime, end: datetime) -> bool:
        """Return whether more calls have ended than are counted. (There are fewer once calls have been deleted.)"""
        rows = self._select(CallRollup, resolution, begin, end)
        known = int(rows.aggregate(known=Sum(ENDED))["known"] or 0)
        return select_ended(self.mark.pk, begin, end).values_list("tenant_id")[: known + 1].count() > known

    def _find_live(self, resolution: Resolution, begin: datetime, end: datetime) -> set[datetime]:
        """Return the minutes or hours that have live calls, by one index lookup for each."""
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
        # Live calls first: see _again.
        live = self._find_live(resolution, begin, end)
        ended = count_ended_calls(self.mark.pk, resolution, begin, end)
        ended |= {starts_at: EndedCalls() for starts_at in live - ended.keys()}
        with transaction.atomic():
            self._claim(**moved)
            self._replace(resolution, begin, end, ended, live)
            for hour in {round_down(starts_at, STEP[HOUR]) for starts_at in ended if resolution == MINUTE}:
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
        ended: Mapping[datetime, EndedCalls],
        live: set[datetime],
    ) -> None:
        for model in (CallRollup, HostRollup):
            self._select(model, resolution, begin, end).delete()
        rows, hosts = [], []
        for starts_at, calls in ended.items():
            key = (self.mark.pk, resolution.value, starts_at)
            outcomes = [calls.ended[status] for status in OUTCOME_COLUMNS]
            rows.append((*key, *outcomes, *calls.late, starts_at in live, self.now))
            by_host = {host: [by[status] for status in OUTCOME_COLUMNS] for host, by in calls.hosts.items()}
            hosts += [(*key, host, *by_host[host]) for host in _select_hosts(by_host)]
        insert_rows(CallRollup, (*KEY, *COUNTERS, "is_open", "counted_at"), rows)
        insert_rows(HostRollup, (*KEY, "host", *OUTCOME_COLUMNS.values()), hosts)

    def _sum_minutes(self, hour: datetime) -> None:
        whole = (hour, hour + STEP[HOUR])
        minutes = self._select(CallRollup, MINUTE, *whole)
        sums = minutes.aggregate(
            **{name: Sum(name) for name in COUNTERS},
            open_minutes=Count("starts_at", filter=Q(is_open=True)),
        )
        key = (self.mark.pk, HOUR.value, hour)
        counters = [int(sums[name]) for name in COUNTERS]
        by_host = {
            host: [int(count) for count in counts]
            for host, *counts in self._select(HostRollup, MINUTE, *whole)
            .values_list("host")
            .annotate(*(Sum(name) for name in OUTCOME_COLUMNS.values()))
        }
        for model in (CallRollup, HostRollup):
            self._select(model, HOUR, *whole).delete()
        row = (*key, *counters, sums["open_minutes"] > 0, self.now)
        insert_rows(CallRollup, (*KEY, *COUNTERS, "is_open", "counted_at"), [row])
        hosts = [(*key, host, *by_host[host]) for host in _select_hosts(by_host)]
        insert_rows(HostRollup, (*KEY, "host", *OUTCOME_COLUMNS.values()), hosts)

    def _select(self, model: Any, resolution: Resolution, begin: datetime, end: datetime) -> Any:
        rows = model.objects.for_tenant(self.mark.pk)
        return rows.filter(resolution=resolution, starts_at__gte=begin, starts_at__lt=end)


def _select_hosts(by_host: Mapping[str, list[int]]) -> list[str]:
    """Return the hosts to keep, given [succeeded, failed, canceled] of each."""
    failing = sorted((host for host in by_host if by_host[host][1]), key=lambda host: -by_host[host][1])
    busiest = sorted(by_host, key=lambda host: -sum(by_host[host]))
    return sorted({*failing[:MAX_RANKED_HOSTS], *busiest[:MAX_RANKED_HOSTS]})

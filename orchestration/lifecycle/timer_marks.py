"""Marks: what is to be done in a timer store because a take of this cell has ended.

A mark is written in the transaction that records the end, because no transaction spans two databases. The feeder applies
it (orchestration.feeder): the row is removed, or is due again at the time of the next attempt. Both are conditional on the
take, so a mark that comes late changes nothing.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

from django.db.models import Count, Min

from eventservice.db.bulk import execute_rows, insert_rows
from eventservice.db.now import as_utc
from eventservice.tenants.directory import get_profile
from orchestration.lifecycle.rows import LockedCall, move
from orchestration.models import TimerMark
from orchestration.states import Status
from timers.stores.port import Progress, QualifiedNamespace, Revision, Take, TimerKey, round_up

COLUMNS = (
    "tenant_id", "service_call_id", "take", "store", "namespace", "timer_id", "shard_id", "execute_at", "next_at",
    "failures", "interruptions", "first_started_at", "next_seq", "marked_at",
)  # fmt: skip


class Mark(NamedTuple):
    """The end of a take: the timer is due again at `next_at`, or removed if that is None."""

    store: str
    take: Take
    next_at: datetime | None
    progress: Progress

    @property
    def key(self) -> tuple[uuid.UUID, uuid.UUID, int]:
        return self.take.key.namespace.tenant_id, self.take.revision, self.take.number


def build_progress(row: LockedCall, now: datetime, *, failed: int = 0, interrupted: int = 0) -> Progress:
    """Return what the next attempt has to know of a Running call whose attempt ends with one event."""
    return Progress(
        attempts=row.failures - 1 + failed,
        interruptions=row.interruptions + interrupted,
        first_started_at=round_up(row.started_at or now),
        next_seq=row.next_seq + 1,
    )


def build_mark(row: LockedCall, next_at: datetime | None, progress: Progress) -> Mark:
    """Return the mark for the end of the take under which a call was fed."""
    if row.fed is None or row.external_id is None:
        raise ValueError(f"the call {row.service_call_id} is not from a timer store")
    profile = get_profile(row.tenant_id)
    namespace = QualifiedNamespace(row.tenant_id, row.namespace)
    key = TimerKey.build(namespace, row.external_id, profile.get_num_shards(row.namespace))
    take = Take(key, Revision(row.service_call_id), row.fed.due_at, row.fed.take)
    return Mark(profile.stores[row.namespace], take, next_at, progress)


def release_takes(rows: Sequence[LockedCall], now: datetime) -> None:
    """Let Scheduled calls whose attempt has not started in time wait for the next take. Their timers are due as before."""
    move(Status.SCHEDULED, Status.SCHEDULED, "start_before = NULL", [(row, ()) for row in rows], events=0)
    marks = []
    for row in rows:
        if row.fed is not None:
            first = row.started_at and round_up(row.started_at)
            progress = Progress(row.failures, row.interruptions, first, row.next_seq)
            marks.append(build_mark(row, row.fed.due_at, progress))
    insert_marks(marks, now)


def insert_marks(marks: Iterable[Mark], now: datetime) -> None:
    insert_rows(TimerMark, COLUMNS, [_to_row(mark, now) for mark in marks])


def _to_row(mark: Mark, now: datetime) -> tuple[object, ...]:
    take, key, progress = mark.take, mark.take.key, mark.progress
    return (
        key.namespace.tenant_id, take.revision, take.number, mark.store, key.namespace.name, key.timer_id, key.shard,
        take.execute_at, mark.next_at, progress.attempts, progress.interruptions, progress.first_started_at,
        progress.next_seq, now,
    )  # fmt: skip


def list_marks(store: str, limit: int) -> list[Mark]:
    """Return the marks of a store that have waited longest."""
    rows = TimerMark.across_tenants.filter(store=store).order_by("marked_at")[:limit]
    return [_read_mark(row) for row in rows]


class MarkBacklog(NamedTuple):
    """The marks for one store that have not been applied."""

    store: str
    marks: int
    oldest: datetime


def measure_marks() -> list[MarkBacklog]:
    """Return the backlog of each store for which there are marks. They pile up while the feeder cannot reach the store."""
    by_store = TimerMark.across_tenants.order_by("store").values_list("store")
    rows = by_store.annotate(Count("take"), Min("marked_at"))
    return [MarkBacklog(store, marks, as_utc(oldest)) for store, marks, oldest in rows]


def find_marked(tenant_id: uuid.UUID, service_call_ids: Iterable[uuid.UUID]) -> set[tuple[uuid.UUID, int]]:
    """Return the takes of these calls for which there is a mark, each as the call's id and the number of the take."""
    marks = TimerMark.objects.for_tenant(tenant_id).filter(service_call_id__in=list(service_call_ids))
    return set(marks.values_list("service_call_id", "take"))


def delete_marks(marks: Iterable[Mark]) -> None:
    """Delete marks that have been applied."""
    execute_rows(
        "DELETE FROM timer_marks WHERE tenant_id = %s AND service_call_id = %s AND take = %s",
        [mark.key for mark in marks],
    )


def _read_mark(row: TimerMark) -> Mark:
    key = TimerKey(QualifiedNamespace(row.tenant_id, row.namespace), row.timer_id, row.shard_id)
    first = row.first_started_at and as_utc(row.first_started_at)
    return Mark(
        row.store,
        Take(key, Revision(row.service_call_id), as_utc(row.execute_at), row.take),
        row.next_at and as_utc(row.next_at),
        Progress(row.failures, row.interruptions, first, row.next_seq),
    )

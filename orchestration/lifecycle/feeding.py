"""Feed timers that this cell has taken from a timer store: each becomes a service call, or makes its call ready again.

The revision of a timer is the id of its call, and the number of the take is the number of the attempt. Whoever feeds a timer
a second time under the same take changes nothing, so a take may be fed by any process of the cell, any number of times.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db import DEFAULT_DB_ALIAS, IntegrityError, transaction
from django.db.models import Q

from eventservice.db.bulk import insert_rows
from eventservice.db.errors import retry_on_deadlock
from eventservice.db.now import db_now, to_rfc3339
from eventservice.kernel.errors import NotFound
from eventservice.tenants.directory import get_profile, list_namespaces_in_store
from orchestration.admission import CALL_BYTES, note_stored
from orchestration.commands import SubmitServiceCall
from orchestration.events import EventType
from orchestration.lifecycle.attempts import RECORDING_GRACE
from orchestration.lifecycle.commands import cancel
from orchestration.lifecycle.rows import LockedCall, build_event, lock_call, lock_calls, move
from orchestration.lifecycle.submission import (
    CALL_COLUMNS,
    build_row,
    build_submitted_events,
    build_timer,
)
from orchestration.lifecycle.timer_marks import Mark, find_marked, insert_marks, release_takes
from orchestration.models import ServiceCall
from orchestration.states import TERMINAL, Status
from orchestration.timer_callbacks import build_stored_timer_command
from outbox.writer import Event, append_events, find_last_seqs
from timers.persistence import timer_persistence
from timers.port import Timer
from timers.stores.port import StoredTimer, round_up

# A take ends this long after its attempt must have started and used all of its timeout. It includes the time in which the
# outcome is recorded.
START_GRACE = timedelta(seconds=15)
TAKE_GRACE = START_GRACE + RECORDING_GRACE
FED_COLUMNS = (*CALL_COLUMNS, "started_at", "timer_take", "timer_lapses", "start_before")


def compute_take_end(timer: StoredTimer, now: datetime, look_ahead: timedelta) -> datetime:
    """Return until when a timer is taken that is taken now, at most `look_ahead` before it is due."""
    return round_up(now + look_ahead + timedelta(seconds=timer.callback_timeout_seconds) + TAKE_GRACE)


def compute_start_before(timer: StoredTimer) -> datetime:
    """Return the time by which the attempt of a taken timer must start, so that it has ended when the take ends."""
    return timer.taken_until - timedelta(seconds=timer.callback_timeout_seconds) - RECORDING_GRACE


def abandon_takes(using: str = DEFAULT_DB_ALIAS) -> None:
    """Let all ready calls of timers in stores wait for another take, in a database that gets a new cell id.

    It may have lost commits: what is ready in it may have been sent before, under the same take.
    """
    ready = ServiceCall.across_tenants.using(using).filter(
        status=Status.SCHEDULED, start_before__isnull=False
    )
    ready.update(start_before=None)


@retry_on_deadlock
def release_ready(store: str, limit: int) -> int:
    """Release the takes of calls that are ready to start, at most `limit`. Return how many of them were."""
    ready = Q(start_before__isnull=False)
    calls = [(call.tenant_id, call.service_call_id) for call in _list_scheduled(store, ready, limit)]
    with transaction.atomic():
        for tenant_id, service_call_id in calls:
            timer_persistence.unschedule_timer(tenant_id, service_call_id)
        rows = [row for row in lock_calls(calls) if row.fed and row.fed.start_before]
        release_takes([row for row in rows if row.status == Status.SCHEDULED], db_now())
    return len(calls)


def list_waiting(store: str, due_before: datetime, limit: int) -> list[ServiceCall]:
    """Return calls of timers in a store that have waited for a take since their timers were due."""
    waiting = Q(start_before__isnull=True, timer_take__isnull=False, due_at__lt=due_before)
    return _list_scheduled(store, waiting, limit)


def _list_scheduled(store: str, condition: Q, limit: int) -> list[ServiceCall]:
    by_tenant = defaultdict(list)
    for tenant_id, namespace in list_namespaces_in_store(store):
        by_tenant[tenant_id].append(namespace)
    found: list[ServiceCall] = []
    for tenant_id, namespaces in by_tenant.items():
        calls = ServiceCall.objects.for_tenant(tenant_id).filter(condition, status=Status.SCHEDULED)
        of_store = calls.filter(namespace__in=namespaces).order_by("due_at")
        found += of_store.defer("request_spec")[: limit - len(found)]
    return found


@retry_on_deadlock
def close_waiting(tenant_id: uuid.UUID, service_call_id: uuid.UUID, take: int) -> bool:
    """Cancel a call whose timer is gone from its store, or was changed there.

    Return False if the call does not wait, or waits after a later take.
    """
    with transaction.atomic(), suppress(NotFound):
        row = lock_call(tenant_id, service_call_id)
        if _is_waiting(row, take):
            cancel(tenant_id, service_call_id)
            return True
    return False


@retry_on_deadlock
def reschedule_waiting(tenant_id: uuid.UUID, service_call_id: uuid.UUID, take: int, due_at: datetime) -> None:
    """Note that the timer of a call that waits was moved, unless the call waits after a later take."""
    with transaction.atomic(), suppress(NotFound):
        row = lock_call(tenant_id, service_call_id)
        if _is_waiting(row, take):
            move(Status.SCHEDULED, Status.SCHEDULED, "due_at = {due_at}", [(row, (due_at,))])
            facts = {"dueAt": to_rfc3339(due_at)}
            append_events([build_event(row, 0, EventType.RESCHEDULED, facts, db_now())])


@retry_on_deadlock
def follow_timer(tenant_id: uuid.UUID, service_call_id: uuid.UUID, take: int, due_at: datetime) -> None:
    """Note when the timer of a call that waits is due, as another cell has left it. That cell has published events."""
    with transaction.atomic(), suppress(NotFound):
        row = lock_call(tenant_id, service_call_id)
        if _is_waiting(row, take) and row.fed and row.fed.due_at != due_at:
            move(Status.SCHEDULED, Status.SCHEDULED, "due_at = {due_at}", [(row, (due_at,))], events=0)


def _is_waiting(row: LockedCall, take: int) -> bool:
    return (
        row.status == Status.SCHEDULED
        and row.fed is not None
        and row.fed.start_before is None
        and row.fed.take <= take
    )


@dataclass(slots=True)
class _Feed:
    """A batch of timers, sorted by what becomes of them."""

    new: list[StoredTimer] = field(default_factory=list)
    again: list[tuple[LockedCall, StoredTimer]] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)


@retry_on_deadlock
def feed(store: str, timers: Sequence[StoredTimer]) -> int:
    """Make the calls of taken timers ready to start, and return how many were not ready before.

    Of a timer whose call has ended, only the row is left: it is marked for removal. A take whose attempt would start too
    late is marked as released. A call that is Running, or that was fed under this take before, stays as it is.
    """
    if not timers:
        return 0
    try:
        with transaction.atomic():
            return _feed(store, timers)
    except IntegrityError:
        # Another process of this cell was faster: its calls are found now.
        with transaction.atomic():
            return _feed(store, timers)


def _feed(store: str, timers: Sequence[StoredTimer]) -> int:
    now = db_now()
    calls = {
        (row.tenant_id, row.service_call_id): row
        for row in lock_calls((timer.key.namespace.tenant_id, timer.revision) for timer in timers)
    }
    feed = _Feed()
    for timer in _drop_ended(timers):
        _judge(store, timer, calls.get((timer.key.namespace.tenant_id, timer.revision)), now, feed)
    feed.new = _close_other_revisions(feed.new)
    _insert_calls(feed, now)
    _arm_calls(feed, now)
    append_events(feed.events)
    insert_marks(feed.marks, now)
    return len(feed.new) + len(feed.again)


def _judge(store: str, timer: StoredTimer, row: LockedCall | None, now: datetime, feed: _Feed) -> None:
    is_late = now > compute_start_before(timer)
    if row is not None and (row.fed is None or row.status == Status.RUNNING):
        return
    if row is not None and row.status in TERMINAL:
        feed.marks.append(Mark(store, timer.take, None, timer.progress))
    elif row is not None and row.fed is not None and (row.fed.start_before or row.fed.take >= timer.takes):
        # An earlier take that is still ready is too late. The engine finds out before anything else: it holds the timer.
        return
    elif is_late:
        feed.marks.append(Mark(store, timer.take, timer.execute_at, timer.progress))
    elif row is None:
        feed.new.append(timer)
    else:
        feed.again.append((row, timer))


def _drop_ended(timers: Sequence[StoredTimer]) -> list[StoredTimer]:
    """Return the timers whose takes have no mark. A take that has ended must not begin again, even if the clock is set back."""
    by_tenant = defaultdict(list)
    for timer in timers:
        by_tenant[timer.key.namespace.tenant_id].append(timer)
    left = []
    for tenant_id, of_tenant in by_tenant.items():
        ended = find_marked(tenant_id, [timer.revision for timer in of_tenant])
        left += [timer for timer in of_tenant if (timer.revision, timer.takes) not in ended]
    return left


def _close_other_revisions(timers: Sequence[StoredTimer]) -> list[StoredTimer]:
    """Cancel waiting calls of earlier revisions of these timers. Return the timers without a live call.

    The row says that the earlier revision is gone. A callback of it that is under way may finish: until then, the timer
    waits, because a timer has one live call.
    """
    free = []
    others = _find_live_calls(timers)
    for timer in timers:
        key = timer.key.namespace.tenant_id, timer.key.namespace.name, timer.key.timer_id
        other = others.get(key)
        if other is None or cancel(key[0], other) == Status.CANCELED:
            free.append(timer)
    return free


def _find_live_calls(timers: Iterable[StoredTimer]) -> dict[tuple[uuid.UUID, str, str], uuid.UUID]:
    by_namespace = defaultdict(list)
    for timer in timers:
        by_namespace[timer.key.namespace].append(timer.key.timer_id)
    found = {}
    for namespace, ids in by_namespace.items():
        calls = ServiceCall.objects.for_tenant(namespace.tenant_id).filter(namespace=namespace.name)
        rows = calls.filter(live_external_id__in=ids).values_list("live_external_id", "service_call_id")
        found.update({(namespace.tenant_id, namespace.name, timer_id): call_id for timer_id, call_id in rows})
    return found


def _insert_calls(feed: _Feed, now: datetime) -> None:
    """Insert the calls of timers that this database does not know, or whose calls were pruned."""
    rows, due = [], []
    for timer, first_seq in _number_events(feed.new):
        command, entry = _build_call(timer, now)
        events = _build_first_events(timer, command, entry, first_seq, now)
        rows.append(_build_row(timer, command, entry, first_seq + len(events), now))
        due.append(entry)
        feed.events += events
        note_stored(entry.tenant_id, CALL_BYTES + entry.request_bytes)
    insert_rows(ServiceCall, FED_COLUMNS, rows)
    timer_persistence.insert_timers(due, now)


def _number_events(timers: Sequence[StoredTimer]) -> list[tuple[StoredTimer, int]]:
    """Return each timer with the number of its next event. Those of a pruned call may be kept here."""
    by_tenant = defaultdict(list)
    for timer in timers:
        if timer.takes > 1:
            by_tenant[timer.key.namespace.tenant_id].append(timer.revision)
    kept = {tenant_id: find_last_seqs(tenant_id, ids) for tenant_id, ids in by_tenant.items()}
    return [
        (
            timer,
            max(
                timer.progress.next_seq,
                kept.get(timer.key.namespace.tenant_id, {}).get(timer.revision, 0) + 1,
            ),
        )
        for timer in timers
    ]


def _build_call(timer: StoredTimer, now: datetime) -> tuple[SubmitServiceCall, Timer]:
    command = build_stored_timer_command(timer)
    # The time in the row, also if that has passed: it is a part of what ends the take.
    entry = build_timer(command, get_profile(command.tenant_id), now)._replace(due_at=timer.execute_at)
    return command, entry


def _build_row(
    timer: StoredTimer, command: SubmitServiceCall, entry: Timer, next_seq: int, now: datetime
) -> tuple[Any, ...]:
    row = build_row(command, entry, get_profile(command.tenant_id), now)
    values = dict(zip(CALL_COLUMNS, row, strict=True)) | {
        "submitted_at": timer.created_at,
        "attempt": timer.takes - 1,
        "interruptions": timer.progress.interruptions,
        "next_seq": next_seq,
        "started_at": timer.progress.first_started_at,
        "timer_take": timer.takes,
        "timer_lapses": _count_lapses(timer),
        "start_before": compute_start_before(timer),
    }
    return tuple(values[column] for column in FED_COLUMNS)


def _count_lapses(timer: StoredTimer) -> int:
    """Return how many takes before the current one had no attempt, or one of which nothing is known."""
    return max(0, timer.takes - 1 - timer.progress.attempts - timer.progress.interruptions)


def _build_first_events(
    timer: StoredTimer, command: SubmitServiceCall, entry: Timer, first_seq: int, now: datetime
) -> list[Event]:
    if first_seq == 1:
        return [*build_submitted_events(command, entry, now)]
    return [
        Event(
            command.tenant_id,
            command.service_call_id,
            first_seq,
            EventType.RESCHEDULED.value,
            {"dueAt": to_rfc3339(timer.execute_at)},
            now,
            command.correlation_id,
        )
    ]


def _arm_calls(feed: _Feed, now: datetime) -> None:
    """Make waiting calls ready for the attempt of a new take."""
    moves: dict[int, list[tuple[LockedCall, tuple[Any, ...]]]] = defaultdict(list)
    for row, timer in feed.again:
        is_moved = row.fed is not None and row.fed.due_at != timer.execute_at
        values = (
            timer.execute_at, timer.takes - 1, timer.progress.interruptions, timer.takes, _count_lapses(timer),
            compute_start_before(timer),
        )  # fmt: skip
        moves[int(is_moved)].append((row, values))
        if is_moved:
            facts = {"dueAt": to_rfc3339(timer.execute_at)}
            feed.events.append(build_event(row, 0, EventType.RESCHEDULED, facts, now))
        entry = _build_call(timer, now)[1]._replace(correlation_id=row.correlation_id)
        timer_persistence.schedule_timer(entry, now)
    for events, rows in moves.items():
        move(
            Status.SCHEDULED,
            Status.SCHEDULED,
            "due_at = {due_at}, attempt = {attempt}, interruptions = {interruptions}, timer_take = {timer_take},"
            " timer_lapses = {timer_lapses}, start_before = {start_before}",
            rows,
            events=events,
        )

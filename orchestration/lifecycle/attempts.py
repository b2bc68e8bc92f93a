"""The engine's transitions, in batches: calls start, attempts end, and some are interrupted."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db import transaction

from eventservice.db.now import db_now, to_rfc3339
from eventservice.kernel.boot_time import read_boot_time
from eventservice.kernel.faults import trigger_fault
from eventservice.kernel.ids import new_id
from eventservice.tenants.directory import TenantProfile, get_profile
from execution.attempt_builder import StoredRequest
from execution.attempt_log import (
    AttemptKey,
    OpenedAttempt,
    assign_attempts,
    close_attempts,
    filter_orphaned_attempts,
    interrupt_attempts,
    open_attempts,
)
from execution.outcome import Errored, ErrorKind, Outcome
from orchestration.events import EventType
from orchestration.lifecycle.rows import (
    LockedCall,
    build_event,
    lock_calls,
    lock_calls_with_requests,
    lock_calls_without_bodies,
    move,
)
from orchestration.lifecycle.timer_marks import Mark, build_mark, build_progress, insert_marks, release_takes
from orchestration.models import ServiceCall
from orchestration.outcome_rules import (
    RetryTerms,
    Success,
    build_error_meta,
    build_interrupted_meta,
    compute_next_attempt,
    judge,
)
from orchestration.retries import RetryPolicy
from orchestration.states import Delivery, ResponseContract, Status
from outbox.writer import Event, append_events
from timers.persistence import timer_persistence
from timers.port import NewDueTime, Timer
from timers.stores.port import round_up

# After its timeout an attempt has this long to be recorded before the watchdog considers it lost.
RECORDING_GRACE = timedelta(seconds=15)
# A call that is interrupted this often is more likely to be the cause than the victim.
MAX_INTERRUPTIONS = 10


class StartedCall(NamedTuple):
    """A call that has become Running, with all that its attempt needs."""

    key: AttemptKey
    attempt: int
    tenant: TenantProfile
    host: str
    request: StoredRequest
    request_bytes: int
    timeout_seconds: float
    due_at: datetime
    started_at: datetime
    # Only of a timer from a timer store: when its take ends, by the clock of `read_boot_time`.
    send_by: float | None = None

    def strip_body(self) -> StartedCall:
        """Return the call without its body, which may be large and is not needed when the attempt ends."""
        return self._replace(request=replace(self.request, body=None))


def start(
    due: Sequence[Timer], node: uuid.UUID, *, begun_at: float | None = None, with_bodies: bool = True
) -> list[StartedCall]:
    """Move calls from Scheduled to Running and open an attempt log row for each, in the transaction that marked their
    timers reached. Calls that are no longer Scheduled are skipped.

    A call from a timer store whose take has ended waits for the next one. For the others, `begun_at` says when the
    transaction began, by the clock of `read_boot_time`: what happens to the process later cannot extend the take.

    Without their bodies and headers, calls can only be failed: there is too little memory to read more.
    """
    now = db_now()
    due_by_call = {(timer.tenant_id, timer.service_call_id): timer for timer in due}
    begun_at = read_boot_time() if begun_at is None else begun_at
    moves, lapsed = [], []
    lock = lock_calls_with_requests if with_bodies else lock_calls_without_bodies
    for row, request_spec in lock(due_by_call):
        if row.status != Status.SCHEDULED:
            continue
        if row.fed and not row.fed.may_start(now):
            lapsed.append(row)
            continue
        timer = due_by_call[row.tenant_id, row.service_call_id]
        started = _build_started(row, _build_request(row, request_spec), timer, now)
        if row.fed and row.fed.start_before:
            left = row.fed.start_before - now
            started = started._replace(send_by=begun_at + left.total_seconds())
        moves.append((row, started))
    move(
        Status.SCHEDULED,
        Status.RUNNING,
        "attempt = attempt + 1, execution_id = {execution_id}, deadline_at = {deadline_at},"
        " started_at = COALESCE(started_at, {started_at})",
        [(row, (call.key.execution_id, _compute_deadline(call), now)) for row, call in moves],
        events=2,
    )
    release_takes(lapsed, now)
    open_attempts((_build_log_entry(call, node) for _, call in moves), now)
    append_events(event for row, call in moves for event in _build_started_events(row, call, node))
    return [call for _, call in moves]


def _build_request(row: LockedCall, spec: dict[str, Any]) -> StoredRequest:
    request = StoredRequest.from_spec(spec)
    if row.response_contract == ResponseContract.CALLBACK and isinstance(request.body, dict):
        # A callback's body says which attempt it is.
        return replace(request, body={**request.body, "attempt": row.attempt + 1})
    return request


def _build_started(row: LockedCall, request: StoredRequest, timer: Timer, now: datetime) -> StartedCall:
    return StartedCall(
        key=AttemptKey(row.tenant_id, row.service_call_id, new_id()),
        attempt=row.attempt + 1,
        # Read in this transaction: a call whose tenant cannot be read must not be committed as Running.
        tenant=get_profile(row.tenant_id),
        host=timer.host,
        request=request,
        request_bytes=timer.request_bytes,
        timeout_seconds=row.timeout_seconds,
        due_at=timer.due_at,
        started_at=now,
    )


def _compute_deadline(call: StartedCall) -> datetime:
    return call.started_at + timedelta(seconds=call.timeout_seconds) + RECORDING_GRACE


def _build_log_entry(call: StartedCall, node: uuid.UUID) -> OpenedAttempt:
    request = call.request
    return OpenedAttempt(
        call.key,
        call.attempt,
        node,
        request.masked_url,
        request.method,
        request.masked_headers,
        request.body_text,
    )


def _build_started_events(row: LockedCall, call: StartedCall, node: uuid.UUID) -> tuple[Event, Event]:
    now = call.started_at
    reached = build_event(row, 0, EventType.DUE_TIME_REACHED, {"dueAt": to_rfc3339(call.due_at)}, now)
    facts = {"attempt": call.attempt, "executionId": str(call.key.execution_id), "node": str(node)}
    running = build_event(row, 1, EventType.RUNNING, facts, now, cause=reached.event_id)
    # The attempt's id is also its event's id, so that later events can name the attempt as their cause.
    running.event_id = call.key.execution_id
    return reached, running


@dataclass(slots=True)
class _Endings:
    """How the attempts of a batch end, grouped by the statement that writes it."""

    terminal: dict[Status, list[tuple[LockedCall, tuple[Any, ...]]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    retries: list[tuple[LockedCall, tuple[Any, ...]]] = field(default_factory=list)
    retry_times: list[NewDueTime] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)


def finish(ended: Sequence[tuple[AttemptKey, Outcome]], fence: Callable[[], None]) -> int:
    """Record the outcomes of attempts. Return how many calls changed their status.

    The outcome of an attempt that is no longer its call's current one only closes its row in the attempt log.

    `fence` raises, inside the transaction, if this node may no longer write.
    """
    if not ended:
        return 0
    with transaction.atomic():
        fence()
        now = db_now()
        outcomes = {key.execution_id: outcome for key, outcome in ended}
        endings = _Endings()
        for row in lock_calls((key.tenant_id, key.service_call_id) for key, _ in ended):
            if row.status == Status.RUNNING and row.execution_id in outcomes:
                _end_attempt(row, outcomes[row.execution_id], now, endings)
        moved = _write_endings(endings, now)
        close_attempts(ended, now)
        trigger_fault("finish.before_commit")
    return moved


def reclaim(
    keys: Sequence[AttemptKey], node: uuid.UUID, fence: Callable[[], None], *, sent: bool
) -> set[uuid.UUID]:
    """Give attempts to `node`, unless another node has resolved them. Return the ids of those that it has now.

    Their process still makes them, or holds their outcomes, but its former node was declared dead, or it does not know
    whether their start was committed. If their requests have not been sent, calls that are to be canceled are left out.
    `fence` raises, inside the transaction, if this node may not write.
    """
    if not keys:
        return set()
    with transaction.atomic():
        fence()
        current = {key.execution_id for key in keys}
        own = [
            AttemptKey(row.tenant_id, row.service_call_id, row.execution_id)
            for row in lock_calls((key.tenant_id, key.service_call_id) for key in keys)
            if row.status == Status.RUNNING
            and row.execution_id in current
            and (sent or not row.cancel_requested)
        ]
        assign_attempts(own, node)
    return {key.execution_id for key in own}


def _end_attempt(row: LockedCall, outcome: Outcome, now: datetime, endings: _Endings) -> None:
    if row.fed and isinstance(outcome, Errored) and outcome.kind == ErrorKind.EXPIRED:
        # Nothing was sent under this take. The timer is due as before, for the next one.
        return _retry_call(row, row.fed.due_at, build_error_meta(outcome), now, endings, lapsed=1)
    verdict = judge(row.response_contract, outcome, now)
    if isinstance(verdict, Success):
        return _end_call(row, Status.SUCCEEDED, verdict.meta, now, endings)
    if row.cancel_requested:
        return _end_call(row, Status.CANCELED, verdict.meta, now, endings)
    retry_at = compute_next_attempt(_build_terms(row, now), verdict, outcome, now)
    if retry_at is None:
        return _end_call(row, Status.FAILED, verdict.meta, now, endings)
    return _retry_call(row, retry_at, verdict.meta, now, endings)


def _build_terms(row: LockedCall, now: datetime) -> RetryTerms:
    policy = RetryPolicy.from_stored(row.retry_policy)
    return RetryTerms(row.response_contract, row.delivery, policy, row.failures, row.started_at or now)


def _end_call(
    row: LockedCall, status: Status, meta: dict[str, Any], now: datetime, endings: _Endings
) -> None:
    endings.terminal[status].append((row, (now, meta)))
    facts = {**row.identity_facts, **_build_result_facts(row, meta)}
    endings.events.append(build_event(row, 0, _TERMINAL_EVENT[status], facts, now, cause=row.execution_id))
    if row.fed:
        endings.marks.append(build_mark(row, None, build_progress(row, now)))


def _retry_call(
    row: LockedCall,
    retry_at: datetime,
    meta: dict[str, Any],
    now: datetime,
    endings: _Endings,
    interrupted: int = 0,
    lapsed: int = 0,
) -> None:
    if row.fed:
        # The row in the timer store alone says when: until it is taken again, the call has no timer here.
        retry_at = round_up(retry_at)
        failed = 0 if interrupted or lapsed else 1
        progress = build_progress(row, now, failed=failed, interrupted=interrupted)
        endings.marks.append(build_mark(row, retry_at, progress))
    else:
        endings.retry_times.append(NewDueTime(row.tenant_id, row.service_call_id, retry_at))
    endings.retries.append((row, (retry_at, meta, interrupted, lapsed)))
    facts = {"dueAt": to_rfc3339(retry_at), **_build_result_facts(row, meta)}
    endings.events.append(build_event(row, 0, EventType.RESCHEDULED, facts, now, cause=row.execution_id))


_TERMINAL_EVENT = {
    Status.SUCCEEDED: EventType.SUCCEEDED,
    Status.FAILED: EventType.FAILED,
    Status.CANCELED: EventType.CANCELED,
}


def _build_result_facts(row: LockedCall, meta: dict[str, Any]) -> dict[str, object]:
    response, error = meta.get("responseMeta", {}), meta.get("errorMeta", {})
    facts = {
        "attempt": row.attempt,
        "executionId": str(row.execution_id),
        "status": response.get("status"),
        "error": error.get("kind"),
        "latencyMs": response.get("latencyMs", error.get("latencyMs")),
    }
    return {name: value for name, value in facts.items() if value is not None}


def _write_endings(endings: _Endings, now: datetime) -> int:
    for status, rows in endings.terminal.items():
        move(
            Status.RUNNING,
            status,
            "finished_at = {finished_at}, outcome_meta = {outcome_meta}, deadline_at = NULL",
            rows,
        )
    move(
        Status.RUNNING,
        Status.SCHEDULED,
        "due_at = {due_at}, outcome_meta = {outcome_meta}, interruptions = interruptions + {interruptions},"
        " timer_lapses = timer_lapses + {timer_lapses}, deadline_at = NULL, start_before = NULL",
        endings.retries,
    )
    insert_marks(endings.marks, now)
    timer_persistence.rearm_timers(endings.retry_times, now)
    append_events(endings.events)
    return len(endings.events)


def resolve_orphaned(keys: Sequence[AttemptKey], list_node_ids: Callable[[], Collection[uuid.UUID]]) -> int:
    """End attempts of nodes that are gone. Those that another node has reclaimed in the meantime go on."""
    return _resolve(keys, lambda: filter_orphaned_attempts(keys, list_node_ids))


def resolve_interrupted(keys: Sequence[AttemptKey]) -> int:
    """End attempts whose outcome will never be known. Return how many calls changed their status.

    The delivery mode of a call decides whether it is retried or ends.
    """
    return _resolve(keys, lambda: keys)


def _resolve(keys: Sequence[AttemptKey], select_lost: Callable[[], Sequence[AttemptKey]]) -> int:
    with transaction.atomic():
        now = db_now()
        rows = list(lock_calls((key.tenant_id, key.service_call_id) for key in keys))
        lost = select_lost()  # nobody changes them now
        attempts = {key.execution_id for key in lost}
        endings = _Endings()
        for row in rows:
            if row.status == Status.RUNNING and row.execution_id in attempts:
                _interrupt(row, now, endings)
        moved = _write_endings(endings, now)
        interrupt_attempts(lost, now)
        trigger_fault("resolve.before_commit")
    return moved


def _interrupt(row: LockedCall, now: datetime, endings: _Endings) -> None:
    meta = build_interrupted_meta("The process that made this attempt ended; the request may have been sent.")
    if row.cancel_requested:
        return _end_call(row, Status.CANCELED, meta, now, endings)
    if row.delivery == Delivery.AT_MOST_ONCE or row.interruptions >= MAX_INTERRUPTIONS:
        return _end_call(row, Status.FAILED, meta, now, endings)
    return _retry_call(row, now, meta, now, endings, interrupted=1)


def list_overdue_attempts(limit: int) -> list[AttemptKey]:
    """Return the attempts of Running calls past their deadline, those with the earliest deadline first."""
    overdue = ServiceCall.across_tenants.filter(status=Status.RUNNING, deadline_at__lte=db_now())
    keys = overdue.order_by("deadline_at").values_list("tenant_id", "service_call_id", "execution_id")
    # A Running call always has an attempt; the column is nullable.
    return [AttemptKey(tenant, call, attempt) for tenant, call, attempt in keys[:limit] if attempt]

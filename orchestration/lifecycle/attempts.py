"""What the engine does in batches: calls start, their attempts end, and some are interrupted."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db import transaction

from eventservice.db.now import db_now, to_rfc3339
from eventservice.kernel.faults import trigger_fault
from eventservice.kernel.ids import new_id
from execution.attempt_builder import StoredRequest
from execution.attempt_log import AttemptKey, OpenedAttempt, close_attempts, interrupt_attempts, open_attempts
from execution.outcome import Outcome
from orchestration.events import EventType
from orchestration.lifecycle.rows import LockedCall, build_event, lock_calls, lock_calls_with_requests, move
from orchestration.models import ServiceCall
from orchestration.outcome_rules import (
    RetryTerms,
    Success,
    build_interrupted_meta,
    compute_next_attempt,
    judge,
)
from orchestration.retries import RetryPolicy
from orchestration.states import Delivery, ResponseContract, Status
from outbox.writer import Event, append_events
from timers.schedule import Timer, rearm

# Past its own timeout an attempt is given this long to be recorded before the watchdog takes it for lost.
RECORDING_GRACE = timedelta(seconds=15)


# A call that is interrupted this often is more likely the cause than the victim.
MAX_INTERRUPTIONS = 10


class StartedCall(NamedTuple):
    """A call that has just become Running, with all that its attempt needs."""

    key: AttemptKey
    attempt: int
    host: str
    request: StoredRequest
    timeout_seconds: float
    due_at: datetime
    request_bytes: int


def start(due: Sequence[Timer], node: uuid.UUID) -> list[StartedCall]:
    """Inside the transaction that reached their timers: Scheduled → Running, an open log row each."""
    now = db_now()
    due_by_call = {(timer.tenant_id, timer.service_call_id): timer for timer in due}
    started, moves = [], []
    for row, request_spec in lock_calls_with_requests(due_by_call):
        if row.status != Status.SCHEDULED:
            continue
        timer = due_by_call[row.tenant_id, row.service_call_id]
        call = _build_started(row, _build_request(row, request_spec), timer)
        started.append(call)
        moves.append((row, call))
    move(
        Status.SCHEDULED,
        Status.RUNNING,
        "attempt = attempt + 1, execution_id = {execution_id}, deadline_at = {deadline_at},"
        " started_at = COALESCE(started_at, {started_at})",
        [(row, (call.key.execution_id, _compute_deadline(now, call), now)) for row, call in moves],
        events=2,
    )
    open_attempts((_build_log_entry(call, node) for call in started), now)
    append_events(event for row, call in moves for event in _build_started_events(row, call, node, now))
    return started


def _build_request(row: LockedCall, spec: dict[str, Any]) -> StoredRequest:
    request = StoredRequest.from_spec(spec)
    if row.response_contract == ResponseContract.CALLBACK and isinstance(request.body, dict):
        # A callback's body tells which attempt it is.
        return replace(request, body={**request.body, "attempt": row.attempt + 1})
    return request


def _build_started(row: LockedCall, request: StoredRequest, timer: Timer) -> StartedCall:
    key = AttemptKey(row.tenant_id, row.service_call_id, new_id())
    return StartedCall(
        key, row.attempt + 1, timer.host, request, row.timeout_seconds, timer.due_at, timer.request_bytes
    )


def _compute_deadline(now: datetime, call: StartedCall) -> datetime:
    return now + timedelta(seconds=call.timeout_seconds) + RECORDING_GRACE


def _build_log_entry(call: StartedCall, node: uuid.UUID) -> OpenedAttempt:
    request = call.request
    return OpenedAttempt(
        call.key, call.attempt, node, request.url, request.method, request.masked_headers, request.body_text
    )


def _build_started_events(
    row: LockedCall, call: StartedCall, node: uuid.UUID, now: datetime
) -> tuple[Event, Event]:
    reached = build_event(row, 0, EventType.DUE_TIME_REACHED, {"dueAt": to_rfc3339(call.due_at)}, now)
    facts = {"attempt": call.attempt, "executionId": str(call.key.execution_id), "node": str(node)}
    running = build_event(row, 1, EventType.RUNNING, facts, now, cause=reached.event_id)
    # The attempt's id is also its event's: what comes of the attempt names it as the cause.
    running.event_id = call.key.execution_id
    return reached, running


@dataclass(slots=True)
class _Endings:
    """How a batch of attempts ends, gathered by the kind of write that it takes."""

    terminal: dict[Status, list[tuple[LockedCall, tuple[Any, ...]]]]
    again: list[tuple[LockedCall, tuple[Any, ...]]]
    due_again: list[tuple[uuid.UUID, uuid.UUID, datetime]]
    events: list[Event]


def finish(ended: Sequence[tuple[AttemptKey, Outcome]], fence: Callable[[], None]) -> int:
    """Record what attempts came to. A result that is not of its call's present attempt only closes its log row.

    `fence` raises, inside the transaction, when this node may not write any more. How many calls were moved.
    """
    if not ended:
        return 0
    with transaction.atomic():
        fence()
        now = db_now()
        outcomes = {key.execution_id: outcome for key, outcome in ended}
        ends = _Endings(defaultdict(list), [], [], [])
        for row in lock_calls((key.tenant_id, key.service_call_id) for key, _ in ended):
            if row.status == Status.RUNNING and row.execution_id in outcomes:
                _end(row, outcomes[row.execution_id], now, ends)
        moved = _write_endings(ends)
        close_attempts(ended, now)
        trigger_fault("finish.before_commit")
    return moved


def close_late(ended: Iterable[tuple[AttemptKey, Outcome]]) -> None:
    """Results of a node that has been fenced: they change no state, and the log still tells what was sent."""
    ended = list(ended)
    if not ended:
        return
    with transaction.atomic():
        close_attempts(ended, db_now())


def _end(row: LockedCall, outcome: Outcome, now: datetime, ends: _Endings) -> None:
    verdict = judge(row.response_contract, outcome, now)
    if isinstance(verdict, Success):
        return _end_for_good(row, Status.SUCCEEDED, verdict.meta, now, ends)
    if row.cancel_requested:
        return _end_for_good(row, Status.CANCELED, verdict.meta, now, ends)
    again_at = compute_next_attempt(_build_terms(row, now), verdict, outcome, now)
    if again_at is None:
        return _end_for_good(row, Status.FAILED, verdict.meta, now, ends)
    return _end_for_now(row, again_at, verdict.meta, now, ends)


def _build_terms(row: LockedCall, now: datetime) -> RetryTerms:
    policy = RetryPolicy.from_stored(row.retry_policy)
    return RetryTerms(
        row.response_contract, row.delivery, policy, row.attempt - row.interruptions, row.started_at or now
    )


def _end_for_good(
    row: LockedCall, status: Status, meta: dict[str, Any], now: datetime, ends: _Endings
) -> None:
    ends.terminal[status].append((row, (now, meta)))
    ends.events.append(
        build_event(
            row, 0, _TERMINAL_EVENT[status], _build_result_facts(row, meta), now, cause=row.execution_id
        )
    )


def _end_for_now(
    row: LockedCall,
    again_at: datetime,
    meta: dict[str, Any],
    now: datetime,
    ends: _Endings,
    interrupted: int = 0,
) -> None:
    ends.again.append((row, (again_at, meta, interrupted)))
    ends.due_again.append((row.tenant_id, row.service_call_id, again_at))
    facts = {"dueAt": to_rfc3339(again_at), **_build_result_facts(row, meta)}
    ends.events.append(build_event(row, 0, EventType.RESCHEDULED, facts, now, cause=row.execution_id))


_TERMINAL_EVENT = {
    Status.SUCCEEDED: EventType.SUCCEEDED,
    Status.FAILED: EventType.FAILED,
    Status.CANCELED: EventType.CANCELED,
}


def _build_result_facts(row: LockedCall, meta: dict[str, Any]) -> dict[str, Any]:
    response, error = meta.get("responseMeta", {}), meta.get("errorMeta", {})
    facts = {
        "attempt": row.attempt,
        "executionId": str(row.execution_id),
        "status": response.get("status"),
        "error": error.get("kind"),
        "latencyMs": response.get("latencyMs", error.get("latencyMs")),
    }
    return {name: value for name, value in facts.items() if value is not None}


def _write_endings(ends: _Endings) -> int:
    for status, rows in ends.terminal.items():
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
        " deadline_at = NULL",
        ends.again,
    )
    rearm(ends.due_again)
    append_events(ends.events)
    return len(ends.events)


def resolve_interrupted(keys: Sequence[AttemptKey]) -> int:
    """Attempts whose end nobody will see: their calls go on by what was agreed for them."""
    with transaction.atomic():
        now = db_now()
        attempts = {key.execution_id for key in keys}
        ends = _Endings(defaultdict(list), [], [], [])
        for row in lock_calls((key.tenant_id, key.service_call_id) for key in keys):
            if row.status == Status.RUNNING and row.execution_id in attempts:
                _interrupt(row, now, ends)
        moved = _write_endings(ends)
        interrupt_attempts(keys, now)
        trigger_fault("resolve.before_commit")
    return moved


def _interrupt(row: LockedCall, now: datetime, ends: _Endings) -> None:
    meta = build_interrupted_meta("The process that made this attempt ended; the request may have been sent.")
    if row.cancel_requested:
        return _end_for_good(row, Status.CANCELED, meta, now, ends)
    if row.delivery == Delivery.AT_MOST_ONCE or row.interruptions >= MAX_INTERRUPTIONS:
        return _end_for_good(row, Status.FAILED, meta, now, ends)
    return _end_for_now(row, now, meta, now, ends, interrupted=1)


def list_overdue_attempts(limit: int) -> list[AttemptKey]:
    """Running calls past their deadline, the longest first: the watchdog's."""
    overdue = ServiceCall.across_tenants.filter(status=Status.RUNNING, deadline_at__lte=db_now())
    keys = overdue.order_by("deadline_at").values_list("tenant_id", "service_call_id", "execution_id")
    # A running call has an attempt.
    return [AttemptKey(tenant, call, attempt) for tenant, call, attempt in keys[:limit] if attempt]

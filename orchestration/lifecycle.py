"""The only writer of service calls. Every function is one transition, of one call or of a batch of them.

Each locks the rows it moves, writes them with an UPDATE that is guarded by what it has read, and appends the
events in the same transaction. `next_seq` is both the number of the call's next event and the version that
guards the write: it grows with every transition, so no writer can act on what another has changed.

Locks are taken in one order everywhere, the timer before the call, so that writers wait and never deadlock.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db import IntegrityError, transaction

from eventservice.kernel.bulk import execute_rows, insert_rows, update_rows
from eventservice.kernel.errors import Conflict, DomainError, NotFound
from eventservice.kernel.faults import fault
from eventservice.kernel.ids import new_id
from eventservice.kernel.now import db_now
from eventservice.kernel.sharding import shard_of
from eventservice.tenants.public import Profile, profile, tenant_ids
from execution.public import (
    AttemptKey,
    OpenedAttempt,
    Outcome,
    Request,
    close_attempts,
    interrupt_attempts,
    open_attempts,
    open_sealed,
    parse_target,
    seal,
)
from orchestration.commands import RequestSpec, SubmitServiceCall
from orchestration.events import EventType, instant
from orchestration.models import ServiceCall, ServiceCallTag
from orchestration.retries import RetryPolicy
from orchestration.states import FAVORITE, TERMINAL, TRANSITIONS, Delivery, ResponseContract, Status
from orchestration.verdicts import Success, Terms, interrupted_meta, judge, next_attempt_at
from outbox.public import Event, append, forget
from timers.public import DueTimer, Timer, rearm, schedule, schedule_again, unschedule

# Past its own timeout an attempt is given this long to be recorded before the watchdog takes it for lost.
RECORDING_GRACE = timedelta(seconds=15)
# A call that is interrupted this often is more likely the cause than the victim.
MOST_INTERRUPTIONS = 10


class LostRace(Exception):
    """A row changed although it was locked: a writer other than this module. Nothing is committed."""


class Row(NamedTuple):
    """A call as it stands, locked."""

    tenant_id: uuid.UUID
    service_call_id: uuid.UUID
    status: str
    next_seq: int
    correlation_id: uuid.UUID
    attempt: int
    interruptions: int
    execution_id: uuid.UUID | None
    cancel_requested: bool
    started_at: datetime | None
    timeout_seconds: float
    retry_policy: dict[str, Any] | None
    response_contract: str
    delivery: str


class StartedCall(NamedTuple):
    """A call that has just become Running, with all that its attempt needs."""

    key: AttemptKey
    attempt: int
    lane: str
    request: Request
    timeout_seconds: float
    due_at: datetime


@dataclass(frozen=True, slots=True)
class Submitted:
    service_call_id: uuid.UUID
    replayed: bool = False  # an earlier call with the same idempotency key
    # Of a new call, so that it can be shown without being read again.
    submitted_at: datetime | None = None
    due_at: datetime | None = None


# --- submit ---------------------------------------------------------------------------------------------------

CALL_COLUMNS = (
    "tenant_id", "service_call_id", "name", "status", "submitted_at", "due_at", "request_spec", "namespace",
    "external_id", "host", "idempotency_key", "request_fingerprint", "correlation_id", "replay_of",
    "retry_policy", "timeout_seconds", "response_contract", "delivery",
    "attempt", "interruptions", "cancel_requested", "next_seq",
)  # fmt: skip


def submit(commands: Sequence[SubmitServiceCall]) -> list[Submitted]:
    """Store new calls with their timers and events, all or none. A known idempotency key gives its call again."""
    try:
        with transaction.atomic():
            return _submit(commands)
    except IntegrityError:
        # Another request with the same key was faster: now its call is there to be found.
        return _submit_again(commands)


def _submit_again(commands: Sequence[SubmitServiceCall]) -> list[Submitted]:
    try:
        with transaction.atomic():
            return _submit(commands)
    except IntegrityError:
        raise Conflict(
            "already_exists", "A call with this id, or a live one with this timer id, exists."
        ) from None


def _submit(commands: Sequence[SubmitServiceCall]) -> list[Submitted]:
    known = _known(commands)
    now = db_now()
    fresh: dict[Any, SubmitServiceCall] = {}
    results = []
    for command in commands:
        given = command.idempotency_key
        key = (command.tenant_id, command.service_call_id if given is None else given)
        if key in known or key in fresh:
            results.append(_replayed(command, known.get(key) or _as_known(fresh[key])))
        else:
            fresh[key] = command
            results.append(Submitted(command.service_call_id, submitted_at=now, due_at=command.due_from(now)))
    if fresh:
        _store(list(fresh.values()), now)
    return results


class _Known(NamedTuple):
    service_call_id: uuid.UUID
    fingerprint: str | None


def _as_known(command: SubmitServiceCall) -> _Known:
    return _Known(command.service_call_id, command.fingerprint)


def _known(commands: Sequence[SubmitServiceCall]) -> dict[Any, _Known]:
    """Calls that were stored before under the commands' idempotency keys."""
    keys = defaultdict(list)
    for command in commands:
        if command.idempotency_key is not None:
            keys[command.tenant_id].append(command.idempotency_key)
    found = {}
    for tenant_id, wanted in keys.items():
        rows = ServiceCall.objects.for_tenant(tenant_id).filter(idempotency_key__in=wanted)
        for key, *known in rows.values_list("idempotency_key", "service_call_id", "request_fingerprint"):
            found[tenant_id, key] = _Known(*known)
    return found


def _replayed(command: SubmitServiceCall, known: _Known) -> Submitted:
    if known.fingerprint != command.fingerprint:
        raise Conflict(
            "idempotency_conflict",
            f"The idempotency key {command.idempotency_key!r} was used for another request.",
            faults={
                "idempotencyKey": "must be new, or come with the very request that it was first used for"
            },
        )
    return Submitted(known.service_call_id, replayed=True)


def _store(commands: Sequence[SubmitServiceCall], now: datetime) -> None:
    profiles = {tenant_id: profile(tenant_id) for tenant_id in {command.tenant_id for command in commands}}
    timers = [_timer(command, profiles[command.tenant_id], now) for command in commands]
    insert_rows(
        ServiceCall,
        CALL_COLUMNS,
        [_call_row(c, t, profiles[c.tenant_id], now) for c, t in zip(commands, timers, strict=True)],
    )
    insert_rows(
        ServiceCallTag,
        ("tenant_id", "service_call_id", "tag"),
        [(c.tenant_id, c.service_call_id, tag) for c in commands for tag in sorted(c.tags)],
    )
    schedule(timers, now)
    append(event for c, t in zip(commands, timers, strict=True) for event in _submitted_events(c, t, now))


def _timer(command: SubmitServiceCall, tenant: Profile, now: datetime) -> Timer:
    timer_key = command.external_id or str(command.service_call_id)
    return Timer(
        command.tenant_id,
        command.service_call_id,
        command.correlation_id,
        due_at=command.due_from(now),
        shard_id=shard_of(command.tenant_id, timer_key, tenant.shards_of(command.namespace)),
        lane=parse_target(command.request.url).host,
    )


def _call_row(command: SubmitServiceCall, timer: Timer, tenant: Profile, now: datetime) -> tuple[Any, ...]:
    spec = {
        "method": command.request.method,
        "url": command.request.url,
        "headers": seal(command.request.headers, tenant.secret_headers),
        "body": command.request.body,
    }
    policy = command.retry_policy
    return (
        command.tenant_id, command.service_call_id, command.name, Status.SCHEDULED.value, now, timer.due_at,
        spec, command.namespace, command.external_id, timer.lane, command.idempotency_key,
        None if command.idempotency_key is None else command.fingerprint, command.correlation_id, command.replay_of,
        policy.to_stored() if policy else None, command.timeout_seconds,
        command.response_contract.value, command.delivery.value, 0, 0, False, 3,
    )  # fmt: skip


def _submitted_events(command: SubmitServiceCall, timer: Timer, now: datetime) -> tuple[Event, Event]:
    def event(seq: int, kind: EventType, data: dict[str, Any], causation_id: uuid.UUID | None) -> Event:
        return Event(
            command.tenant_id,
            command.service_call_id,
            seq,
            kind.value,
            data,
            now,
            command.correlation_id,
            causation_id,
        )

    due_at = instant(timer.due_at)
    facts = {
        "name": command.name,
        "method": command.request.method,
        "host": timer.lane,
        "namespace": command.namespace,
        "timerId": command.external_id,
        "tags": sorted(command.tags),
        "dueAt": due_at,
    }
    submitted = event(1, EventType.SUBMITTED, facts, None)
    return submitted, event(2, EventType.SCHEDULED, {"dueAt": due_at}, submitted.event_id)


# --- start and finish: the engine's batches -------------------------------------------------------------------


def start(due: Sequence[DueTimer], node: uuid.UUID) -> list[StartedCall]:
    """Inside the transaction that reached their timers: Scheduled → Running, an open log row each."""
    now = db_now()
    due_by_call = {(timer.tenant_id, timer.service_call_id): timer for timer in due}
    started, moves = [], []
    for row, request_spec in _locked_with_request(due_by_call):
        if row.status != Status.SCHEDULED:
            continue
        timer = due_by_call[row.tenant_id, row.service_call_id]
        call = _started(row, _request(row, request_spec), timer)
        started.append(call)
        moves.append((row, call))
    _move(
        Status.SCHEDULED,
        Status.RUNNING,
        "attempt = attempt + 1, execution_id = {execution_id}, deadline_at = {deadline_at},"
        " started_at = COALESCE(started_at, {started_at})",
        [(row, (call.key.execution_id, _deadline(now, call), now)) for row, call in moves],
        events=2,
    )
    open_attempts((_opened(call, node) for call in started), now)
    append(event for row, call in moves for event in _started_events(row, call, node, now))
    return started


def _request(row: Row, spec: dict[str, Any]) -> Request:
    request = Request.from_spec(spec)
    if row.response_contract == ResponseContract.CALLBACK and isinstance(request.body, dict):
        # A callback's body tells which attempt it is.
        return replace(request, body={**request.body, "attempt": row.attempt + 1})
    return request


def _started(row: Row, request: Request, timer: DueTimer) -> StartedCall:
    key = AttemptKey(row.tenant_id, row.service_call_id, new_id())
    return StartedCall(key, row.attempt + 1, timer.lane, request, row.timeout_seconds, timer.due_at)


def _deadline(now: datetime, call: StartedCall) -> datetime:
    return now + timedelta(seconds=call.timeout_seconds) + RECORDING_GRACE


def _opened(call: StartedCall, node: uuid.UUID) -> OpenedAttempt:
    request = call.request
    return OpenedAttempt(
        call.key, call.attempt, node, request.url, request.method, request.masked_headers, request.body_text
    )


def _started_events(row: Row, call: StartedCall, node: uuid.UUID, now: datetime) -> tuple[Event, Event]:
    reached = _event(row, 0, EventType.DUE_TIME_REACHED, {"dueAt": instant(call.due_at)}, now)
    facts = {"attempt": call.attempt, "executionId": str(call.key.execution_id), "node": str(node)}
    running = _event(row, 1, EventType.RUNNING, facts, now, cause=reached.event_id)
    # The attempt's id is also its event's: what comes of the attempt names it as the cause.
    running.event_id = call.key.execution_id
    return reached, running


@dataclass(slots=True)
class _Ends:
    """How a batch of attempts ends, gathered by the kind of write that it takes."""

    terminal: dict[Status, list[tuple[Row, tuple[Any, ...]]]]
    again: list[tuple[Row, tuple[Any, ...]]]
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
        ends = _Ends(defaultdict(list), [], [], [])
        for row in _locked((key.tenant_id, key.service_call_id) for key, _ in ended):
            if row.status == Status.RUNNING and row.execution_id in outcomes:
                _end(row, outcomes[row.execution_id], now, ends)
        moved = _write_ends(ends)
        close_attempts(ended, now)
        fault("finish.before_commit")
    return moved


def close_late(ended: Iterable[tuple[AttemptKey, Outcome]]) -> None:
    """Results of a node that has been fenced: they change no state, and the log still tells what was sent."""
    ended = list(ended)
    if not ended:
        return
    with transaction.atomic():
        close_attempts(ended, db_now())


def _end(row: Row, outcome: Outcome, now: datetime, ends: _Ends) -> None:
    verdict = judge(row.response_contract, outcome, now)
    if isinstance(verdict, Success):
        return _end_for_good(row, Status.SUCCEEDED, verdict.meta, now, ends)
    if row.cancel_requested:
        return _end_for_good(row, Status.CANCELED, verdict.meta, now, ends)
    again_at = next_attempt_at(_terms(row, now), verdict, outcome, now)
    if again_at is None:
        return _end_for_good(row, Status.FAILED, verdict.meta, now, ends)
    return _end_for_now(row, again_at, verdict.meta, now, ends)


def _terms(row: Row, now: datetime) -> Terms:
    policy = RetryPolicy.from_stored(row.retry_policy)
    return Terms(
        row.response_contract, row.delivery, policy, row.attempt - row.interruptions, row.started_at or now
    )


def _end_for_good(row: Row, status: Status, meta: dict[str, Any], now: datetime, ends: _Ends) -> None:
    ends.terminal[status].append((row, (now, meta)))
    ends.events.append(
        _event(row, 0, _TERMINAL_EVENT[status], _result_facts(row, meta), now, cause=row.execution_id)
    )


def _end_for_now(
    row: Row, again_at: datetime, meta: dict[str, Any], now: datetime, ends: _Ends, interrupted: int = 0
) -> None:
    ends.again.append((row, (again_at, meta, interrupted)))
    ends.due_again.append((row.tenant_id, row.service_call_id, again_at))
    facts = {"dueAt": instant(again_at), **_result_facts(row, meta)}
    ends.events.append(_event(row, 0, EventType.RESCHEDULED, facts, now, cause=row.execution_id))


_TERMINAL_EVENT = {
    Status.SUCCEEDED: EventType.SUCCEEDED,
    Status.FAILED: EventType.FAILED,
    Status.CANCELED: EventType.CANCELED,
}


def _result_facts(row: Row, meta: dict[str, Any]) -> dict[str, Any]:
    response, error = meta.get("responseMeta", {}), meta.get("errorMeta", {})
    facts = {
        "attempt": row.attempt,
        "executionId": str(row.execution_id),
        "status": response.get("status"),
        "error": error.get("kind"),
        "latencyMs": response.get("latencyMs", error.get("latencyMs")),
    }
    return {name: value for name, value in facts.items() if value is not None}


def _write_ends(ends: _Ends) -> int:
    for status, rows in ends.terminal.items():
        _move(Status.RUNNING, status, "finished_at = {finished_at}, outcome_meta = {outcome_meta}, deadline_at = NULL", rows)
    _move(
        Status.RUNNING,
        Status.SCHEDULED,
        "due_at = {due_at}, outcome_meta = {outcome_meta}, interruptions = interruptions + {interruptions},"
        " deadline_at = NULL",
        ends.again,
    )
    rearm(ends.due_again)
    append(ends.events)
    return len(ends.events)


def resolve_interrupted(keys: Sequence[AttemptKey]) -> int:
    """Attempts whose end nobody will see: their calls go on by what was agreed for them."""
    with transaction.atomic():
        now = db_now()
        attempts = {key.execution_id for key in keys}
        ends = _Ends(defaultdict(list), [], [], [])
        for row in _locked((key.tenant_id, key.service_call_id) for key in keys):
            if row.status == Status.RUNNING and row.execution_id in attempts:
                _interrupt(row, now, ends)
        moved = _write_ends(ends)
        interrupt_attempts(keys, now)
        fault("resolve.before_commit")
    return moved


def _interrupt(row: Row, now: datetime, ends: _Ends) -> None:
    meta = interrupted_meta("The process that made this attempt ended; the request may have been sent.")
    if row.cancel_requested:
        return _end_for_good(row, Status.CANCELED, meta, now, ends)
    if row.delivery == Delivery.AT_MOST_ONCE or row.interruptions >= MOST_INTERRUPTIONS:
        return _end_for_good(row, Status.FAILED, meta, now, ends)
    return _end_for_now(row, now, meta, now, ends, interrupted=1)


def overdue_attempts(limit: int) -> list[AttemptKey]:
    """Running calls past their deadline: the watchdog's."""
    overdue = ServiceCall.objects.across_tenants().filter(status=Status.RUNNING, deadline_at__lte=db_now())
    return [
        AttemptKey(*key)
        for key in overdue.values_list("tenant_id", "service_call_id", "execution_id")[:limit]
    ]


# --- commands of the tenant -----------------------------------------------------------------------------------


def cancel(tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> Status:
    """Canceled at once while Scheduled. A running attempt may have been sent, so it is let end first: Running."""
    with transaction.atomic():
        unschedule(tenant_id, service_call_id)
        row = _one(tenant_id, service_call_id)
        if row.status == Status.RUNNING:
            ServiceCall.objects.for_tenant(tenant_id).filter(service_call_id=service_call_id).update(
                cancel_requested=True
            )
            return Status.RUNNING
        _require(row, Status.SCHEDULED, "cancel")
        now = db_now()
        _move(Status.SCHEDULED, Status.CANCELED, "finished_at = {finished_at}", [(row, (now,))])
        append([_event(row, 0, EventType.CANCELED, {}, now)])
    return Status.CANCELED


def reschedule(tenant_id: uuid.UUID, service_call_id: uuid.UUID, due_at: datetime | None) -> None:
    """Another due time while Scheduled; None: now."""
    with transaction.atomic():
        now = db_now()
        due_at = due_at or now
        rearm([(tenant_id, service_call_id, due_at)], only_pending=True)
        row = _one(tenant_id, service_call_id)
        _require(row, Status.SCHEDULED, "reschedule")
        _move(Status.SCHEDULED, Status.SCHEDULED, "due_at = {due_at}", [(row, (due_at,))])
        append([_event(row, 0, EventType.RESCHEDULED, {"dueAt": instant(due_at)}, now)])


def _require(row: Row, status: Status, what: str) -> None:
    if row.status != status:
        raise Conflict(
            "wrong_state", f"A call that is {row.status} cannot {what}: it must be {status.value}."
        )


# --- reading under lock, writing under guard ------------------------------------------------------------------


def _one(tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> Row:
    for row in _locked([(tenant_id, service_call_id)]):
        return row
    raise NotFound("service call")


def _locked(keys: Iterable[tuple[uuid.UUID, uuid.UUID]]) -> Iterable[Row]:
    return (Row(tenant_id, *values) for tenant_id, values in _lock(keys, Row._fields[1:]))


def _locked_with_request(keys: Iterable[tuple[uuid.UUID, uuid.UUID]]) -> Iterable[tuple[Row, dict[str, Any]]]:
    for tenant_id, (*values, request_spec) in _lock(keys, (*Row._fields[1:], "request_spec")):
        yield Row(tenant_id, *values), request_spec


def _lock(
    keys: Iterable[tuple[uuid.UUID, uuid.UUID]], fields: Sequence[str]
) -> Iterable[tuple[uuid.UUID, tuple[Any, ...]]]:
    by_tenant = defaultdict(list)
    for tenant_id, service_call_id in keys:
        by_tenant[tenant_id].append(service_call_id)
    for tenant_id in sorted(by_tenant):
        calls = ServiceCall.objects.for_tenant(tenant_id).filter(service_call_id__in=by_tenant[tenant_id])
        for values in calls.select_for_update().order_by("service_call_id").values_list(*fields):
            yield tenant_id, values


def _move(
    origin: Status, to: Status, assignments: str, rows: Sequence[tuple[Row, tuple[Any, ...]]], events: int = 1
) -> None:
    """One guarded UPDATE for all `rows`; it must find each of them as it was read."""
    if to is not origin and to not in TRANSITIONS[origin]:
        raise ValueError(f"{origin} → {to} is no transition")
    touched = update_rows(
        ServiceCall,
        f"status = {{status}}, next_seq = next_seq + {{next_seq}}, {assignments}",
        # IS TRUE hides the status from planners, which might look for a call among all that have the same one.
        "tenant_id = {tenant_id} AND service_call_id = {service_call_id} AND (status = {status}) IS TRUE"
        " AND next_seq = {next_seq}",
        [
            (to.value, events, *values, row.tenant_id, row.service_call_id, origin.value, row.next_seq)
            for row, values in rows
        ],
    )
    if touched != len(rows):
        raise LostRace(f"{origin} → {to}: {touched} of {len(rows)} calls were as they had been read")


def _event(
    row: Row,
    offset: int,
    kind: EventType,
    data: dict[str, Any],
    now: datetime,
    cause: uuid.UUID | None = None,
) -> Event:
    return Event(
        row.tenant_id,
        row.service_call_id,
        row.next_seq + offset,
        kind.value,
        data,
        now,
        row.correlation_id,
        cause,
    )


# --- the rest of what the API asks for ------------------------------------------------------------------------


def submit_each(commands: Sequence[SubmitServiceCall]) -> list[Submitted | DomainError]:
    """Like `submit`, but one that is refused takes none of the others with it."""
    try:
        return [*submit(commands)]
    except DomainError:
        with transaction.atomic():
            return [_submitted_or_refused(command) for command in commands]


def _submitted_or_refused(command: SubmitServiceCall) -> Submitted | DomainError:
    try:
        (submitted,) = submit([command])
    except DomainError as refused:
        return refused
    return submitted


def edit(
    tenant_id: uuid.UUID,
    service_call_id: uuid.UUID,
    *,
    name: str | None = None,
    tags: Collection[str] | None = None,
    due_at: datetime | None = None,
) -> None:
    """What is None stays as it is."""
    with transaction.atomic():
        if due_at is not None:
            reschedule(tenant_id, service_call_id, max(due_at, db_now()))
        _one(tenant_id, service_call_id)
        if name is not None:
            ServiceCall.objects.for_tenant(tenant_id).filter(service_call_id=service_call_id).update(
                name=name
            )
        if tags is not None:
            _tags(tenant_id, service_call_id).exclude(tag__in=tags).delete()
            _add_tags(tenant_id, service_call_id, tags)


def add_tag(tenant_id: uuid.UUID, service_call_id: uuid.UUID, tag: str, *, most: int) -> None:
    with transaction.atomic():
        _one(tenant_id, service_call_id)
        if _tags(tenant_id, service_call_id).exclude(tag=tag).count() >= most:
            raise Conflict("too_many_tags", f"A call has at most {most} tags.")
        _add_tags(tenant_id, service_call_id, [tag])


def remove_tag(tenant_id: uuid.UUID, service_call_id: uuid.UUID, tag: str) -> None:
    with transaction.atomic():
        _one(tenant_id, service_call_id)
        _tags(tenant_id, service_call_id).filter(tag=tag).delete()


def _tags(tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> Any:
    return ServiceCallTag.objects.for_tenant(tenant_id).filter(service_call_id=service_call_id)


def _add_tags(tenant_id: uuid.UUID, service_call_id: uuid.UUID, tags: Iterable[str]) -> None:
    there = set(_tags(tenant_id, service_call_id).values_list("tag", flat=True))
    rows = [(tenant_id, service_call_id, tag) for tag in sorted(set(tags) - there)]
    insert_rows(ServiceCallTag, ("tenant_id", "service_call_id", "tag"), rows)


def replay(
    tenant_id: uuid.UUID,
    service_call_id: uuid.UUID,
    correlation_id: uuid.UUID,
    idempotency_key: str | None = None,
) -> Submitted:
    """A new call that asks for the same, due now, and names its origin."""
    calls = ServiceCall.objects.for_tenant(tenant_id).filter(service_call_id=service_call_id)
    origin = calls.first()
    if origin is None:
        raise NotFound("service call")
    if origin.status not in TERMINAL:
        raise Conflict("wrong_state", f"A call that is {origin.status} cannot replay: it must have ended.")
    spec = origin.request_spec
    (submitted,) = submit(
        [
            SubmitServiceCall(
                tenant_id=tenant_id,
                name=origin.name,
                request=RequestSpec(spec["method"], spec["url"], open_sealed(spec["headers"]), spec["body"]),
                tags=frozenset(_tags(tenant_id, service_call_id).values_list("tag", flat=True)) - {FAVORITE},
                namespace=origin.namespace,
                idempotency_key=idempotency_key,
                correlation_id=correlation_id,
                retry_policy=RetryPolicy.from_stored(origin.retry_policy) if origin.retry_policy else None,
                timeout_seconds=origin.timeout_seconds,
                response_contract=ResponseContract(origin.response_contract),
                delivery=Delivery(origin.delivery),
                replay_of=service_call_id,
            )
        ]
    )
    return submitted


def delete(tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> None:
    """It, and by the database's cascades its tags, timer and attempts; its published events too."""
    with transaction.atomic():
        unschedule(tenant_id, service_call_id)
        row = _one(tenant_id, service_call_id)
        if row.status == Status.RUNNING:
            raise Conflict("wrong_state", "A call that is Running cannot be deleted: cancel it, or wait.")
        ServiceCall.objects.for_tenant(tenant_id).filter(service_call_id=service_call_id).delete()
        forget(tenant_id, service_call_id)


def set_timer(command: SubmitServiceCall) -> None:
    """The upsert of a durable timer: a pending one of its namespace and id is overwritten."""
    try:
        with transaction.atomic():
            _set_timer(command)
    except IntegrityError:
        # Another request made the timer first: now it is there to be overwritten.
        with transaction.atomic():
            _set_timer(command)


def change_timer(
    tenant_id: uuid.UUID,
    namespace: str,
    timer_id: str,
    changed: Callable[[ServiceCall], SubmitServiceCall],
) -> None:
    """The same for one that must be there: `changed` makes the command out of it as it stands, locked."""
    with transaction.atomic():
        live = _live_timer(tenant_id, namespace, timer_id)
        if live is None:
            raise NotFound("timer")
        rearm([(tenant_id, live, _stored(tenant_id, live).due_at)], only_pending=True)
        row = _one(tenant_id, live)
        _require(row, Status.SCHEDULED, "be changed")
        _set_anew(row, changed(_stored(tenant_id, live)), db_now())


def _set_timer(command: SubmitServiceCall) -> None:
    assert command.external_id is not None  # noqa: S101 (it is what makes it a durable timer)
    tenant_id, now = command.tenant_id, db_now()
    live = _live_timer(tenant_id, command.namespace, command.external_id)
    if live is None:
        _submit([command])
        return
    rearm([(tenant_id, live, command.due_from(now))], only_pending=True)
    row = _one(tenant_id, live)
    _require(row, Status.SCHEDULED, "be set anew")
    _set_anew(row, command, now)


def _set_anew(row: Row, command: SubmitServiceCall, now: datetime) -> None:
    if not row.attempt:
        return _overwrite(row, replace(command, service_call_id=row.service_call_id), now)
    # It has been sent before, under an idempotency key that must not come with another payload.
    cancel(row.tenant_id, row.service_call_id)
    _submit([command])
    return None


def _live_timer(tenant_id: uuid.UUID, namespace: str, timer_id: str) -> uuid.UUID | None:
    calls = ServiceCall.objects.for_tenant(tenant_id).filter(namespace=namespace, live_external_id=timer_id)
    found: uuid.UUID | None = calls.values_list("service_call_id", flat=True).first()
    return found


def _stored(tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> ServiceCall:
    call: ServiceCall = ServiceCall.objects.for_tenant(tenant_id).get(service_call_id=service_call_id)
    return call


def _overwrite(row: Row, command: SubmitServiceCall, now: datetime) -> None:
    tenant = profile(row.tenant_id)
    timer = replace(_timer(command, tenant, now), correlation_id=row.correlation_id)
    new = dict(zip(CALL_COLUMNS, _call_row(command, timer, tenant, now), strict=True))
    columns = ("name", "due_at", "request_spec", "host", "retry_policy", "timeout_seconds")
    assignments = ", ".join(f"{column} = {{{column}}}" for column in columns)
    _move(Status.SCHEDULED, Status.SCHEDULED, assignments, [(row, tuple(new[column] for column in columns))])
    schedule_again([timer], now)
    append([_event(row, 0, EventType.RESCHEDULED, {"dueAt": instant(timer.due_at)}, now)])


# --- retention ------------------------------------------------------------------------------------------------

PRUNE_BATCH = 500


def prune_calls(older_than: timedelta, limit: int) -> int:
    """Delete calls that ended before that age, with all that hangs on them, in small transactions; how many."""
    before = db_now() - older_than
    pruned = 0
    for tenant_id in tenant_ids():
        for status in sorted(TERMINAL):
            while pruned < limit and (deleted := _prune_some(tenant_id, status, before, limit - pruned)):
                pruned += deleted
    return pruned


def _prune_some(tenant_id: uuid.UUID, status: Status, before: datetime, limit: int) -> int:
    # A call never ends before it is due, so the index by status and due time finds those that ended.
    ended = ServiceCall.objects.for_tenant(tenant_id).filter(
        status=status, due_at__lt=before, finished_at__lt=before
    )
    keys = ended.order_by("due_at").values_list("service_call_id", flat=True)[: min(limit, PRUNE_BATCH)]
    with transaction.atomic():
        return execute_rows(
            "DELETE FROM service_calls WHERE tenant_id = %s AND service_call_id = %s AND status = %s",
            [(tenant_id, key, status.value) for key in keys],
        )

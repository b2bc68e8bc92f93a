"""Submit new calls, with their timers and their first events."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from django.db import IntegrityError, transaction

from eventservice.db.bulk import insert_rows
from eventservice.db.errors import retry_on_deadlock
from eventservice.db.now import db_now, to_rfc3339
from eventservice.kernel.errors import Conflict, DomainError
from eventservice.kernel.sharding import compute_shard
from eventservice.tenants.directory import TenantProfile, get_profile
from execution.redaction import encrypt_headers
from orchestration.admission import CALL_BYTES, AdmissionRefused, find_room, note_stored, take_room
from orchestration.commands import SubmitServiceCall
from orchestration.events import EventType
from orchestration.fingerprints import matches_fingerprint, seal_fingerprint
from orchestration.models import ServiceCall, ServiceCallTag
from orchestration.states import Status
from outbox.writer import Event, append_events, find_aggregates_with_events
from timers.persistence import timer_persistence
from timers.port import Timer


@dataclass(frozen=True, slots=True)
class Submitted:
    """The result of one submission. The times are those of a new call, which can so be shown without being read."""

    service_call_id: uuid.UUID
    is_repeat: bool = False  # the call was submitted before, under the same idempotency key
    submitted_at: datetime | None = None
    due_at: datetime | None = None


class SubmissionConflict(Conflict):
    """Commands that conflict with a call that exists, with one that was deleted, or with each other.

    `commands` are those to change, of all that were submitted together. `existing_call_id` is the call that an
    idempotency key belongs to.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        errors: Mapping[str, str],
        commands: Sequence[SubmitServiceCall],
        existing_call_id: uuid.UUID | None = None,
    ) -> None:
        super().__init__(code, message, errors=errors)
        self.commands = commands
        self.existing_call_id = existing_call_id


# A batch in which a call is refused is submitted in chunks: about the square root of the largest batch.
CHUNK_SIZE = 32
KEY_IS_USED = "was used for another request: repeat exactly that one, or use a new key for another call"
NEW_ID = {"serviceCallId": "must be new"}
# A new call has two events.
FIRST_FREE_SEQ = 3
CALL_COLUMNS = (
    "tenant_id", "service_call_id", "name", "status", "submitted_at", "due_at", "request_spec", "namespace",
    "external_id", "host", "idempotency_key", "request_fingerprint", "correlation_id", "replay_of",
    "retry_policy", "timeout_seconds", "response_contract", "delivery",
    "attempt", "interruptions", "cancel_requested", "next_seq",
)  # fmt: skip


@retry_on_deadlock
def submit(commands: Sequence[SubmitServiceCall]) -> list[Submitted]:
    """Store new calls with their timers and events, all or none. A command whose idempotency key is known stores nothing:
    its result is the call that was made before.

    Raise Conflict if an id is taken or a key was used for another request, and AdmissionRefused if a tenant may have no
    more calls.
    """
    room = find_room(command.tenant_id for command in commands)
    try:
        with transaction.atomic():
            return submit_in_transaction(commands, room)
    except IntegrityError:
        # Another request with the same key was faster: its call is found now.
        return _submit_again(commands, room)


def _submit_again(commands: Sequence[SubmitServiceCall], room: Mapping[uuid.UUID, int]) -> list[Submitted]:
    try:
        with transaction.atomic():
            return submit_in_transaction(commands, room)
    except IntegrityError:
        raise _explain_conflict(commands) from None


def _explain_conflict(commands: Sequence[SubmitServiceCall]) -> Conflict:
    """Return the Conflict for a violated constraint: find out which id is taken."""
    for tenant_id in {command.tenant_id for command in commands}:
        ids = [command.service_call_id for command in commands if command.tenant_id == tenant_id]
        calls = ServiceCall.objects.for_tenant(tenant_id).filter(service_call_id__in=ids)
        if taken := set(calls.values_list("service_call_id", flat=True)):
            return _build_taken(
                [
                    command
                    for command in commands
                    if command.tenant_id == tenant_id and command.service_call_id in taken
                ]
            )
    if any(command.external_id is not None for command in commands):
        return Conflict("already_exists", "A pending timer of this id exists.")
    return _build_used_before(commands)


def _build_taken(commands: Sequence[SubmitServiceCall]) -> SubmissionConflict:
    detail = f"A call with the id {_format_ids(commands)} exists."
    return SubmissionConflict("already_exists", detail, errors=NEW_ID, commands=commands)


def _build_used_before(commands: Sequence[SubmitServiceCall]) -> SubmissionConflict:
    used = f"A call with the id {_format_ids(commands)} was deleted, and its events are still kept: the id cannot be used again before they go."
    return SubmissionConflict("already_used", used, errors=NEW_ID, commands=commands)


def _format_ids(commands: Sequence[SubmitServiceCall]) -> str:
    """Return the first id, and how many others there are: `errors` point to all of them."""
    first, others = commands[0].service_call_id, len(commands) - 1
    return f"{first} (and {others} more)" if others else str(first)


def submit_in_transaction(
    commands: Sequence[SubmitServiceCall], room: Mapping[uuid.UUID, int]
) -> list[Submitted]:
    """Submit in the caller's transaction, with the `room` that find_room returned before it began."""
    known = _find_known(commands)
    now = db_now()
    fresh: dict[Any, SubmitServiceCall] = {}
    given_ids = set()
    results = []
    for command in commands:
        has_key = command.idempotency_key is not None
        # Without an idempotency key, a command repeats no other one.
        key = (command.tenant_id, command.idempotency_key if has_key else command.service_call_id)
        if key in known or (key in fresh and has_key):
            results.append(
                _build_repeat(command, known.get(key) or _to_known(fresh[key]), is_stored=key in known)
            )
        else:
            if command.id_was_given:
                if (command.tenant_id, command.service_call_id) in given_ids:
                    raise _build_repeated_id(command)
                given_ids.add((command.tenant_id, command.service_call_id))
            fresh[key] = command
            results.append(
                Submitted(command.service_call_id, submitted_at=now, due_at=command.compute_due_at(now))
            )
    if fresh:
        take_room((command.tenant_id for command in fresh.values()), room)
        store_calls(list(fresh.values()), now)
    return results


class _Known(NamedTuple):
    service_call_id: uuid.UUID
    fingerprint: str | None


def _to_known(command: SubmitServiceCall) -> _Known:
    return _Known(command.service_call_id, _build_fingerprint(command))


def _build_fingerprint(command: SubmitServiceCall) -> str:
    return seal_fingerprint(command.tenant_id, command.idempotency_key or "", command.content_hash)


def _find_known(commands: Sequence[SubmitServiceCall]) -> dict[Any, _Known]:
    """Return the calls that were stored before under the commands' idempotency keys."""
    keys = defaultdict(list)
    for command in commands:
        if command.idempotency_key is not None:
            keys[command.tenant_id].append(command.idempotency_key)
    found = {}
    for tenant_id, wanted in keys.items():
        rows = ServiceCall.objects.for_tenant(tenant_id).filter(idempotency_key__in=wanted)
        columns = rows.values_list("idempotency_key", "service_call_id", "request_fingerprint")
        for key, service_call_id, fingerprint in columns:
            found[tenant_id, key] = _Known(service_call_id, fingerprint)
    return found


def _build_repeat(command: SubmitServiceCall, known: _Known, *, is_stored: bool) -> Submitted:
    key = command.idempotency_key or ""
    if not matches_fingerprint(known.fingerprint, command.tenant_id, key, command.content_hash):
        raise _build_mismatch(command, known.service_call_id if is_stored else None)
    return Submitted(known.service_call_id, is_repeat=True)


def _build_mismatch(command: SubmitServiceCall, existing: uuid.UUID | None) -> SubmissionConflict:
    """Return the error of a command whose key belongs to another request: to that of a call that exists, or to another
    command."""
    key = command.idempotency_key
    detail = (
        f"Two different calls in this batch have the idempotency key {key!r}."
        if existing is None
        else f"The idempotency key {key!r} was used for another request, whose call exists. If you mean the same call, repeat exactly what "
        "was sent first. Use a new key only for another call."
    )
    return SubmissionConflict(
        "idempotency_conflict",
        detail,
        errors={"idempotencyKey": KEY_IS_USED},
        commands=[command],
        existing_call_id=existing,
    )


def _build_repeated_id(command: SubmitServiceCall) -> SubmissionConflict:
    detail = f"Two calls in this batch have the serviceCallId {command.service_call_id}."
    return SubmissionConflict("already_exists", detail, errors=NEW_ID, commands=[command])


def store_calls(commands: Sequence[SubmitServiceCall], now: datetime) -> None:
    profiles = {
        tenant_id: get_profile(tenant_id) for tenant_id in {command.tenant_id for command in commands}
    }
    timers = [build_timer(command, profiles[command.tenant_id], now) for command in commands]
    for timer in timers:
        note_stored(timer.tenant_id, CALL_BYTES + timer.request_bytes)
    insert_rows(
        ServiceCall,
        CALL_COLUMNS,
        [build_row(c, t, profiles[c.tenant_id], now) for c, t in zip(commands, timers, strict=True)],
    )
    _refuse_used_ids(commands)
    insert_rows(
        ServiceCallTag,
        ("tenant_id", "service_call_id", "tag"),
        [(c.tenant_id, c.service_call_id, tag) for c in commands for tag in sorted(c.tags)],
    )
    timer_persistence.insert_timers(timers, now)
    append_events(
        event for c, t in zip(commands, timers, strict=True) for event in build_submitted_events(c, t, now)
    )


def _refuse_used_ids(commands: Sequence[SubmitServiceCall]) -> None:
    """Raise Conflict if a given id was that of a deleted call whose events are kept, so that numbers repeat in no history.

    Call it when the new calls are stored: until then another transaction may delete the call that has the id.
    """
    given = defaultdict(list)
    for command in commands:
        if command.id_was_given:
            given[command.tenant_id].append(command.service_call_id)
    for tenant_id, ids in given.items():
        if used := find_aggregates_with_events(tenant_id, ids):
            raise _build_used_before(
                [
                    command
                    for command in commands
                    if command.tenant_id == tenant_id and command.service_call_id in used
                ]
            )


def build_timer(command: SubmitServiceCall, tenant: TenantProfile, now: datetime) -> Timer:
    timer_key = command.external_id or str(command.service_call_id)
    return Timer(
        command.tenant_id,
        command.service_call_id,
        command.correlation_id,
        due_at=command.compute_due_at(now),
        shard_id=compute_shard(command.tenant_id, timer_key, tenant.get_num_shards(command.namespace)),
        host=command.request.host,
        request_bytes=command.request.body_bytes,
    )


def build_row(
    command: SubmitServiceCall, timer: Timer, tenant: TenantProfile, now: datetime
) -> tuple[Any, ...]:
    spec = {
        "method": command.request.method,
        "url": command.request.url,
        "headers": encrypt_headers(command.request.headers, tenant.secret_headers),
        "body": command.request.body,
    }
    policy = command.retry_policy
    return (
        command.tenant_id, command.service_call_id, command.name, Status.SCHEDULED.value, now, timer.due_at,
        spec, command.namespace, command.external_id, timer.host, command.idempotency_key,
        None if command.idempotency_key is None else _build_fingerprint(command), command.correlation_id, command.replay_of,
        policy.to_stored() if policy else None, command.timeout_seconds,
        command.response_contract.value, command.delivery.value, 0, 0, False, FIRST_FREE_SEQ,
    )  # fmt: skip


def build_submitted_events(command: SubmitServiceCall, timer: Timer, now: datetime) -> tuple[Event, Event]:
    def build_event(
        seq: int, kind: EventType, data: Mapping[str, object], causation_id: uuid.UUID | None
    ) -> Event:
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

    due_at = to_rfc3339(timer.due_at)
    facts = {
        "name": command.name,
        "method": command.request.method,
        "host": timer.host,
        "namespace": command.namespace,
        "timerId": command.external_id,
        "tags": sorted(command.tags),
        "dueAt": due_at,
    }
    submitted = build_event(1, EventType.SUBMITTED, facts, None)
    return submitted, build_event(2, EventType.SCHEDULED, {"dueAt": due_at}, submitted.event_id)


def submit_each(commands: Sequence[SubmitServiceCall]) -> list[Submitted | DomainError]:
    """Submit commands on their own: a refused one does not affect the others. Return its error in its place.

    Raise AdmissionRefused, and store nothing, if the tenant may not have all the calls.
    """
    try:
        return [*submit(commands)]
    except AdmissionRefused:
        raise
    except DomainError as refused:
        return _submit_chunks(commands) if len(commands) > 1 else [refused]


@retry_on_deadlock
@transaction.atomic
def _submit_chunks(commands: Sequence[SubmitServiceCall]) -> list[Submitted | DomainError]:
    """Submit chunk by chunk. Only chunks with a refused command are submitted one by one, which takes ten times as
    long."""
    size = CHUNK_SIZE if len(commands) > CHUNK_SIZE else 1
    pieces = [commands[start : start + size] for start in range(0, len(commands), size)]
    return [result for piece in pieces for result in submit_each(piece)]

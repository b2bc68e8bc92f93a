"""Lock calls, and write them under guard."""

from __future__ import annotations

import json
import re
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from django.db import connection
from django.db.models import TextField
from django.db.models.fields.json import KT
from django.db.models.functions import Left

from eventservice.db.bulk import move_rows
from eventservice.db.dialects import get_dialect
from eventservice.db.now import as_utc
from eventservice.db.sql import as_uuid, placeholders, stores_parsed_json
from eventservice.kernel.errors import Conflict, NotFound
from orchestration.events import EventType
from orchestration.models import ServiceCall
from orchestration.states import TRANSITIONS, Status
from outbox.writer import Event
from timers.persistence import timer_persistence

# Longer than a method and a URL can be.
MAX_REQUEST_LINE_LENGTH = 20_000


class FedState(NamedTuple):
    """The take under which the call of a timer from a timer store was fed last."""

    take: int
    lapses: int
    start_before: datetime | None
    # The time in the row that was taken.
    due_at: datetime

    def may_start(self, now: datetime) -> bool:
        return self.start_before is not None and now <= self.start_before


class LockedCall(NamedTuple):
    """A locked call, with the columns that transitions need."""

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
    name: str
    namespace: str
    external_id: str | None
    fed: FedState | None

    @property
    def failures(self) -> int:
        """The number of attempts that count against the retry policy, the current one included."""
        return self.attempt - self.interruptions - (self.fed.lapses if self.fed else 0)

    @property
    def identity_facts(self) -> dict[str, object]:
        """The members of a terminal event's data that name the call, so that its receiver need not look it up."""
        return {"name": self.name, "namespace": self.namespace, "timerId": self.external_id}


LOCKED_COLUMNS = (*LockedCall._fields[1:-1], "timer_take", "timer_lapses", "start_before", "due_at")


def require_status(row: LockedCall, status: Status, what: str, *, or_status: Status | None = None) -> None:
    """Raise Conflict unless the call has the status. `or_status` is one that the caller has already dealt with."""
    if row.status != status:
        allowed = " or ".join(one.value for one in (status, or_status) if one)
        raise Conflict("wrong_state", f"A call that is {row.status} cannot {what}: it must be {allowed}.")


def lock_call(tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> LockedCall:
    for row in lock_calls([(tenant_id, service_call_id)]):
        return row
    raise NotFound("service call")


def lock_call_and_timer(tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> LockedCall:
    """Lock a call's timer, if it is pending, and then the call.

    Write the timer only after this: while the call's lock was waited for, the end of an attempt may have armed it again.
    """
    timer_persistence.lock_scheduled_timer(tenant_id, service_call_id)
    return lock_call(tenant_id, service_call_id)


def lock_calls(keys: Iterable[tuple[uuid.UUID, uuid.UUID]]) -> list[LockedCall]:
    return [_to_locked_call(tenant_id, values) for tenant_id, values in _lock(keys, LOCKED_COLUMNS)]


def lock_calls_with_requests(
    keys: Iterable[tuple[uuid.UUID, uuid.UUID]],
) -> list[tuple[LockedCall, dict[str, Any]]]:
    return [
        (_to_locked_call(tenant_id, values), json.loads(request_spec))
        for tenant_id, (*values, request_spec) in _lock(keys, (*LOCKED_COLUMNS, "request_spec"))
    ]


def lock_calls_without_bodies(
    keys: Iterable[tuple[uuid.UUID, uuid.UUID]],
) -> list[tuple[LockedCall, dict[str, Any]]]:
    """Lock calls as `lock_calls_with_requests` does, but read only method and URL of the requests."""
    return [(row, _read_request_line(row.tenant_id, row.service_call_id)) for row in lock_calls(keys)]


def _read_request_line(tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> dict[str, Any]:
    call = ServiceCall.objects.for_tenant(tenant_id).filter(service_call_id=service_call_id)
    if stores_parsed_json():
        method, url = call.values_list(KT("request_spec__method"), KT("request_spec__url")).get()
        return {"method": method, "url": url}
    # To look for a member, SQLite would parse the whole text in this process. Both come before the body in the text.
    (text,) = call.values_list(Left("request_spec", MAX_REQUEST_LINE_LENGTH, output_field=TextField())).get()
    return {member: _find_string(member, text) for member in ("method", "url")}


def _find_string(member: str, text: str) -> str:
    """Return a member of a JSON object, of whose text only the beginning is known."""
    found = re.search(rf'"{member}":\s*("(?:[^"\\]|\\.)*")', text)
    return str(json.loads(found[1])) if found else ""


def _lock(
    keys: Iterable[tuple[uuid.UUID, uuid.UUID]], columns: Sequence[str]
) -> Iterable[tuple[uuid.UUID, Sequence[Any]]]:
    """Lock calls, tenant by tenant, and return each with the values of these columns.

    Not by the ORM, which would take a tenth of the engine's time to build the statement and to convert the values.
    """
    by_tenant = defaultdict(list)
    for tenant_id, service_call_id in keys:
        by_tenant[tenant_id].append(service_call_id.hex)
    for tenant_id in sorted(by_tenant):
        ids = by_tenant[tenant_id]
        sql = (
            f"SELECT {', '.join(columns)} FROM service_calls {get_dialect().fragments.by_primary_key}"
            f" WHERE tenant_id = %s AND service_call_id IN ({placeholders(ids)})"
            f" ORDER BY service_call_id {get_dialect().locks.for_update}"
        )
        with connection.cursor() as cursor:
            cursor.execute(sql, [tenant_id.hex, *ids])
            for values in cursor.fetchall():
                yield tenant_id, values


def _to_locked_call(tenant_id: uuid.UUID, values: Sequence[Any]) -> LockedCall:
    (
        service_call_id, status, next_seq, correlation_id, attempt, interruptions, execution_id, cancel_requested,
        started_at, timeout_seconds, retry_policy, response_contract, delivery, name, namespace, external_id,
        timer_take, timer_lapses, start_before, due_at,
    ) = values  # fmt: skip
    return LockedCall(
        tenant_id,
        as_uuid(service_call_id),
        status,
        next_seq,
        as_uuid(correlation_id),
        attempt,
        interruptions,
        None if execution_id is None else as_uuid(execution_id),
        bool(cancel_requested),
        None if started_at is None else as_utc(started_at),
        timeout_seconds,
        None if retry_policy is None else json.loads(retry_policy),
        response_contract,
        delivery,
        name,
        namespace,
        external_id,
        None
        if timer_take is None
        else FedState(
            timer_take, timer_lapses, None if start_before is None else as_utc(start_before), as_utc(due_at)
        ),
    )


def move(
    origin: Status,
    to: Status,
    assignments: str,
    rows: Sequence[tuple[LockedCall, tuple[Any, ...]]],
    events: int = 1,
) -> None:
    """Move calls with one guarded UPDATE. Raise LostRace unless it finds each of them as it was read."""
    if to is not origin and to not in TRANSITIONS[origin]:
        raise ValueError(f"{origin} → {to} is no transition")
    move_rows(
        ServiceCall,
        f"status = {{status}}, next_seq = next_seq + {{next_seq}}, {assignments}",
        # IS TRUE hides the status from planners, which might search all calls of that status for this one.
        "tenant_id = {tenant_id} AND service_call_id = {service_call_id} AND (status = {status}) IS TRUE"
        " AND next_seq = {next_seq}",
        [
            (to.value, events, *values, row.tenant_id, row.service_call_id, origin.value, row.next_seq)
            for row, values in rows
        ],
        what=f"calls {origin} → {to}",
    )


def build_event(
    row: LockedCall,
    offset: int,
    kind: EventType,
    data: Mapping[str, object],
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

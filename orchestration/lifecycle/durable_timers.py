"""Durable timers: calls that the tenant addresses by ids of its own, and sets instead of submitting them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime

from django.db import IntegrityError, transaction

from eventservice.db.errors import retry_on_deadlock
from eventservice.db.now import db_now, to_rfc3339
from eventservice.kernel.errors import Conflict, NotFound
from eventservice.tenants.directory import get_profile
from orchestration.admission import find_room, note_stored, refuse_full, refuse_inactive
from orchestration.commands import SubmitServiceCall
from orchestration.events import EventType
from orchestration.lifecycle.commands import cancel
from orchestration.lifecycle.rows import LockedCall, build_event, lock_call_and_timer, move, require_status
from orchestration.lifecycle.submission import (
    CALL_COLUMNS,
    build_row,
    build_timer,
    store_calls,
    submit_in_transaction,
)
from orchestration.models import ServiceCall
from orchestration.states import TERMINAL, Status
from outbox.writer import append_events
from timers.persistence import timer_persistence

# How often setting a timer is tried while others set and delete the same one.
MAX_RACES = 10


@retry_on_deadlock
def set_timer(command: SubmitServiceCall) -> None:
    """Set a durable timer. A pending one of the same namespace and id is overwritten."""
    room = find_room([command.tenant_id])
    for _ in range(MAX_RACES):
        try:
            with transaction.atomic():
                return _set_timer(command, room)
        except IntegrityError:
            # Another request made the timer first: it is overwritten now.
            continue
    raise Conflict(
        "already_exists", "Other requests are setting and deleting this timer at the moment: try again."
    )


@retry_on_deadlock
def change_timer(
    tenant_id: uuid.UUID,
    namespace: str,
    timer_id: str,
    build_command: Callable[[ServiceCall], SubmitServiceCall],
) -> None:
    """Change a pending timer; raise NotFound. `build_command` makes the command from the locked call."""
    refuse_inactive(tenant_id)
    with transaction.atomic():
        row = _lock_live(tenant_id, namespace, timer_id)
        if row is None:
            raise NotFound("timer")
        require_status(row, Status.SCHEDULED, "be changed")
        refuse_full(tenant_id)
        _replace(row, build_command(_get_stored(tenant_id, row.service_call_id)), db_now())


@retry_on_deadlock
def delete_timer(tenant_id: uuid.UUID, namespace: str, timer_id: str) -> None:
    """Cancel a pending timer; raise NotFound. A callback in flight may finish."""
    with transaction.atomic():
        row = _lock_live(tenant_id, namespace, timer_id)
        if row is None:
            raise NotFound("timer")
        cancel(tenant_id, row.service_call_id)


def _set_timer(command: SubmitServiceCall, room: Mapping[uuid.UUID, int]) -> None:
    assert command.external_id is not None  # noqa: S101 (it is what makes it a durable timer)
    tenant_id, now = command.tenant_id, db_now()
    row = _lock_live(tenant_id, command.namespace, command.external_id)
    if row is None:
        submit_in_transaction([command], room)
        return
    require_status(row, Status.SCHEDULED, "be set again")
    refuse_full(tenant_id)
    _replace(row, command, now)


def _replace(row: LockedCall, command: SubmitServiceCall, now: datetime) -> None:
    if not row.attempt:
        return _overwrite(row, replace(command, service_call_id=row.service_call_id), now)
    # The callback has been sent before, under an idempotency key that must not carry another payload. The new call takes
    # the place of a pending one, so it needs no room.
    cancel(row.tenant_id, row.service_call_id)
    store_calls([command], now)
    return None


def _lock_live(tenant_id: uuid.UUID, namespace: str, timer_id: str) -> LockedCall | None:
    """Lock and return the live call of a timer, or return None.

    If the call ended or was deleted while its lock was awaited, the timer may have another call, so look again.
    """
    calls = ServiceCall.objects.for_tenant(tenant_id).filter(namespace=namespace, live_external_id=timer_id)
    while (found := calls.values_list("service_call_id", flat=True).first()) is not None:
        with suppress(NotFound):
            row = lock_call_and_timer(tenant_id, found)
            if row.status not in TERMINAL:
                return row
    return None


def _get_stored(tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> ServiceCall:
    call: ServiceCall = ServiceCall.objects.for_tenant(tenant_id).get(service_call_id=service_call_id)
    return call


def _overwrite(row: LockedCall, command: SubmitServiceCall, now: datetime) -> None:
    tenant = get_profile(row.tenant_id)
    timer = build_timer(command, tenant, now)._replace(correlation_id=row.correlation_id)
    new = dict(zip(CALL_COLUMNS, build_row(command, timer, tenant, now), strict=True))
    columns = ("name", "due_at", "request_spec", "host", "retry_policy", "timeout_seconds")
    assignments = ", ".join(f"{column} = {{{column}}}" for column in columns)
    move(Status.SCHEDULED, Status.SCHEDULED, assignments, [(row, tuple(new[column] for column in columns))])
    note_stored(timer.tenant_id, timer.request_bytes)
    timer_persistence.schedule_timer(timer, now)
    append_events([build_event(row, 0, EventType.RESCHEDULED, {"dueAt": to_rfc3339(timer.due_at)}, now)])

"""Write and read timers: each service call has at most one."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from django.db import connection

from eventservice.db.bulk import execute_rows, insert_rows, update_rows, upsert_rows
from eventservice.db.dialects import get_dialect
from eventservice.db.now import DbNow
from timers.models import TimerSchedule, TimerState

TIMER_COLUMNS = (
    "tenant_id", "service_call_id", "correlation_id", "due_at", "registered_at", "state", "shard_id", "host",
    "request_bytes",
)  # fmt: skip
KEY_COLUMNS = ("tenant_id", "service_call_id")
# An upsert makes an existing timer like a new one: it gets the new due time and has not been reached.
OVERWRITTEN_COLUMNS = ("correlation_id", "due_at", "registered_at", "host", "request_bytes", "state")


class Timer(NamedTuple):
    """The timer of one service call, as it is scheduled and as the poller finds it.

    A named tuple, because creating a frozen dataclass takes three times as long.
    """

    tenant_id: uuid.UUID
    service_call_id: uuid.UUID
    correlation_id: uuid.UUID
    due_at: datetime
    shard_id: int
    host: str
    request_bytes: int = 0


def schedule(timers: Iterable[Timer], now: datetime) -> None:
    """Insert timers in bulk. None of their calls may have a timer yet."""
    insert_rows(TimerSchedule, TIMER_COLUMNS, [_to_row(timer, now) for timer in timers])


def upsert_timers(timers: Iterable[Timer], now: datetime) -> None:
    """Insert timers, and overwrite those that exist. An overwritten timer is scheduled again if it was reached."""
    upsert_rows(
        TimerSchedule, TIMER_COLUMNS, [_to_row(timer, now) for timer in timers],
        key=KEY_COLUMNS, overwritten=OVERWRITTEN_COLUMNS, changes="reached_at = NULL",
    )  # fmt: skip


def rearm(due: Iterable[tuple[uuid.UUID, uuid.UUID, datetime]]) -> None:
    """Set new due times, given as (tenant_id, service_call_id, due_at). Timers that were reached are scheduled again."""
    update_rows(
        TimerSchedule,
        "state = 'Scheduled', reached_at = NULL, due_at = {due_at}",
        "tenant_id = {tenant_id} AND service_call_id = {service_call_id}",
        [(due_at, tenant_id, service_call_id) for tenant_id, service_call_id, due_at in due],
    )


def lock_pending(tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> None:
    """Lock a timer until the transaction ends, unless it has been reached."""
    with connection.cursor() as cursor:
        cursor.execute(_LOCK_PENDING + get_dialect().locks.for_update, [tenant_id.hex, service_call_id.hex])
        cursor.fetchone()


# IS TRUE keeps MariaDB from searching an index by state, where it would lock every scheduled timer that it reads.
_LOCK_PENDING = """
SELECT 1 FROM timer_schedules
WHERE tenant_id = %s AND service_call_id = %s AND (state = 'Scheduled') IS TRUE
"""


def unschedule(tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> None:
    """Delete a timer, unless it has been reached."""
    execute_rows(
        "DELETE FROM timer_schedules WHERE tenant_id = %s AND service_call_id = %s AND (state = %s) IS TRUE",
        [(tenant_id, service_call_id, TimerState.SCHEDULED.value)],
    )


def list_timers_by_correlation(correlation_id: uuid.UUID) -> list[TimerSchedule]:
    """Return the timers of a correlation id across all tenants, so that operators can trace a request."""
    return list(TimerSchedule.across_tenants.filter(correlation_id=correlation_id).order_by("due_at"))


def find_timer(tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> TimerSchedule | None:
    return TimerSchedule.objects.for_tenant(tenant_id).filter(service_call_id=service_call_id).first()


def list_due_timers(tenant_id: uuid.UUID, limit: int = 100) -> Sequence[TimerSchedule]:
    """Return due timers of one tenant, the longest due first: the polling query of the spec."""
    due = TimerSchedule.objects.for_tenant(tenant_id).filter(state=TimerState.SCHEDULED, due_at__lte=DbNow())
    return list(due.order_by("due_at")[:limit])


def _to_row(timer: Timer, now: datetime) -> tuple[Any, ...]:
    return (
        timer.tenant_id, timer.service_call_id, timer.correlation_id, timer.due_at, now,
        TimerState.SCHEDULED.value, timer.shard_id, timer.host, timer.request_bytes,
    )  # fmt: skip

"""The timers' tables in SQL: the one implementation of the port (timers.port)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from operator import attrgetter
from typing import Any
from uuid import UUID

from django.db import connection

from eventservice.db.bulk import execute_rows, insert_rows, move_rows, to_json, update_rows, upsert_rows
from eventservice.db.dialects import get_dialect
from eventservice.db.now import as_utc, render_now
from eventservice.db.sql import as_uuid, placeholders
from timers.backlog import SqlBacklog
from timers.models import TimerSchedule, TimerState
from timers.port import (
    LARGE_REQUEST_BYTES,
    HeldBack,
    NewDueTime,
    PollScope,
    Timer,
    TimerEntry,
    TimerPersistencePort,
)

TIMER_COLUMNS = (
    "tenant_id", "service_call_id", "correlation_id", "due_at", "registered_at", "state", "shard_id", "host",
    "request_bytes",
)  # fmt: skip
KEY_COLUMNS = ("tenant_id", "service_call_id")
# An upsert makes an existing timer like a new one: it gets the new due time and has not been reached.
OVERWRITTEN_COLUMNS = ("correlation_id", "due_at", "registered_at", "host", "request_bytes", "state")


class SqlTimerPersistence(SqlBacklog):
    """The tables of this app, in the default database."""

    _rendered_ids: tuple[Iterable[UUID], str] = (), "[]"

    # --- one tenant, or timers that name theirs ---

    def insert_timers(self, timers: Iterable[Timer], now: datetime) -> None:
        insert_rows(TimerSchedule, TIMER_COLUMNS, [_to_row(timer, now) for timer in timers])

    def schedule_timer(self, timer: Timer, now: datetime) -> None:
        upsert_rows(
            TimerSchedule, TIMER_COLUMNS, [_to_row(timer, now)],
            key=KEY_COLUMNS, overwritten=OVERWRITTEN_COLUMNS, changes="reached_at = NULL",
        )  # fmt: skip

    def rearm_timers(self, due: Iterable[NewDueTime], now: datetime) -> None:
        update_rows(
            TimerSchedule,
            "state = 'Scheduled', reached_at = NULL, due_at = {due_at}, registered_at = {registered_at}",
            "tenant_id = {tenant_id} AND service_call_id = {service_call_id}",
            [(new.due_at, now, new.tenant_id, new.service_call_id) for new in due],
        )

    def unschedule_timer(self, tenant_id: UUID, service_call_id: UUID) -> None:
        execute_rows(
            "DELETE FROM timer_schedules WHERE tenant_id = %s AND service_call_id = %s AND (state = %s) IS TRUE",
            [(tenant_id, service_call_id, TimerState.SCHEDULED.value)],
        )

    def lock_scheduled_timer(self, tenant_id: UUID, service_call_id: UUID) -> None:
        with connection.cursor() as cursor:
            lock = get_dialect().locks.for_update
            cursor.execute(_LOCK_SCHEDULED + lock, [tenant_id.hex, service_call_id.hex])
            cursor.fetchone()

    def find_timer(self, tenant_id: UUID, service_call_id: UUID) -> TimerEntry | None:
        found = _select_entries(
            "tenant_id = %s AND service_call_id = %s", [tenant_id.hex, service_call_id.hex]
        )
        return found[0] if found else None

    def find_by_correlation(self, tenant_id: UUID, correlation_id: UUID, limit: int) -> list[TimerEntry]:
        # IS TRUE keeps planners from reading all timers of the tenant.
        return _select_entries(
            f"correlation_id = %s AND (tenant_id = %s) IS TRUE {_BY_DUE_TIME} LIMIT %s",
            [correlation_id.hex, tenant_id.hex, limit],
        )

    def find_due(
        self, tenant_id: UUID, now: datetime, limit: int, scope: PollScope | None = None
    ) -> list[Timer]:
        scope = scope and scope._replace(held_back=scope.held_back.for_tenant(tenant_id))
        return _lock_due("tenant_id = %s AND", [tenant_id.hex], now, limit, "due_at", scope)

    def find_due_timer(self, tenant_id: UUID, service_call_id: UUID, now: datetime) -> Timer | None:
        key = [tenant_id.hex, service_call_id.hex]
        found = _lock_due("tenant_id = %s AND service_call_id = %s AND", key, now, 1, "due_at", None)
        return found[0] if found else None

    def mark_fired(self, timers: Sequence[Timer], reached_at: datetime, versions: Mapping[int, int]) -> None:
        move_rows(
            TimerSchedule,
            "state = 'Reached', reached_at = {reached_at}, claim_version = {claim_version}",
            "tenant_id = {tenant_id} AND service_call_id = {service_call_id} AND state = 'Scheduled'",
            [(reached_at, versions[t.shard_id], t.tenant_id, t.service_call_id) for t in timers],
            what="timers Scheduled → Reached",
        )

    # --- an engine's poll, of the shards that it owns ---

    def find_due_in_shards(self, now: datetime, limit: int, scope: PollScope) -> list[Timer]:
        # Ordered like the index. Without it PostgreSQL prefers to read the table: it takes "is scheduled" and
        # "is past" for independent, and so expects most of the table to be due.
        return _lock_due("", [], now, limit, "shard_id, due_at", scope)

    def find_tenants_with_due(self, tenant_ids: Iterable[UUID], by: datetime) -> list[UUID]:
        sql = _TENANTS_WITH_DUE.format(tenants=get_dialect().fragments.uuid_rows)
        with connection.cursor() as cursor:
            cursor.execute(sql, [self._render_ids(tenant_ids), _to_database(by)])
            found = [_to_tenant_id(tenant_id) for (tenant_id,) in cursor.fetchall()]
        # By their numbers: comparing UUIDs takes several times as long.
        return sorted(found, key=attrgetter("int"))

    def _render_ids(self, tenant_ids: Iterable[UUID]) -> str:
        """Return the ids as JSON. Those of a poller are the same tuple again and again, which is rendered once."""
        known, rendered = self._rendered_ids
        if tenant_ids is not known or not isinstance(tenant_ids, tuple):
            rendered = to_json([tenant_id.hex for tenant_id in tenant_ids])
            self._rendered_ids = tenant_ids, rendered
        return rendered

    def find_seconds_until_due(self, shards: Collection[int]) -> float | None:
        with connection.cursor() as cursor:
            now, values = render_now()
            sql = _FIRST_DUE.format(placeholders=placeholders(shards), now=now)
            cursor.execute(sql, [*values, *shards])
            first, now = cursor.fetchone()
        return None if first is None else (as_utc(first) - as_utc(now)).total_seconds()


timer_persistence: TimerPersistencePort = SqlTimerPersistence()


# --- statements -----------------------------------------------------------------------------------------------

_BY_DUE_TIME = "ORDER BY due_at, tenant_id, service_call_id"

# IS TRUE keeps MariaDB from searching an index by state, where it would lock every scheduled timer that it reads.
_LOCK_SCHEDULED = """
SELECT 1 FROM timer_schedules
WHERE tenant_id = %s AND service_call_id = %s AND (state = 'Scheduled') IS TRUE
"""

# One index seek for each shard, however large the backlog. Ordered like the index, or else MySQL sorts all of a shard's.
_FIRST_DUE = """
SELECT MIN(first_due), {now} FROM (
    SELECT (
        SELECT t.due_at FROM timer_schedules t
        WHERE t.shard_id = s.shard_id AND t.state = 'Scheduled' ORDER BY t.shard_id, t.due_at LIMIT 1
    ) AS first_due
    FROM timer_shards s WHERE s.shard_id IN ({placeholders})
) AS firsts
"""


# One index seek for each tenant; DISTINCT, and EXISTS as a planner may join it, would read every timer that is due.
_TENANTS_WITH_DUE = """
SELECT given.id FROM {tenants} WHERE (
    SELECT 1 FROM timer_schedules t
    WHERE t.tenant_id = given.id AND t.state = 'Scheduled' AND t.due_at <= %s ORDER BY t.due_at LIMIT 1
) = 1
"""


def _lock_due(
    condition: str, values: list[Any], now: datetime, limit: int, order: str, scope: PollScope | None
) -> list[Timer]:
    sql = (
        f"SELECT {', '.join(Timer._fields)} FROM timer_schedules"
        f" WHERE {condition} state = 'Scheduled' AND due_at <= %s"
    )
    values = [*values, _to_database(now)]
    if scope is not None:
        sql += f" AND shard_id IN ({placeholders(scope.shards)})"
        values += scope.shards
        if scope.since is not None:
            sql += " AND due_at > %s"
            values.append(_to_database(scope.since))
        if scope.held_back:
            exclusion, excluded = _exclude(scope.held_back)
            sql += f" AND {exclusion}"
            values += excluded
    with connection.cursor() as cursor:
        cursor.execute(
            f"{sql} ORDER BY {order} LIMIT {limit} {get_dialect().locks.for_update_skip_locked}", values
        )
        return [_to_timer(row) for row in cursor.fetchall()]


def _exclude(held_back: HeldBack) -> tuple[str, list[Any]]:
    """Return the SQL condition that excludes timers that are held back, and its parameters."""
    conditions, values = ["1 = 1"], list[Any]()
    for column, names in (
        ("tenant_id", [tenant.hex for tenant in held_back.tenants]),
        ("host", list(held_back.hosts)),
    ):
        if names:
            conditions.append(f"{column} NOT IN ({placeholders(names)})")
            values += names
    if by_tenant := held_back.hosts_by_tenant:
        # One CASE for all tenants: SQLite refuses an expression of more than a thousand joined conditions.
        cases = [f"WHEN %s THEN host NOT IN ({placeholders(hosts)})" for hosts in by_tenant.values()]
        conditions.append(f"CASE tenant_id {' '.join(cases)} ELSE 1 = 1 END")
        values += [value for tenant, hosts in by_tenant.items() for value in (tenant.hex, *hosts)]
    if held_back.large:
        condition, large_values = _exclude(held_back.large)
        conditions.append(f"({condition} OR request_bytes < %s)")  # the only column that is not in the index
        values += [*large_values, LARGE_REQUEST_BYTES]
    return " AND ".join(conditions), values


def _select_entries(condition: str, values: list[Any]) -> list[TimerEntry]:
    with connection.cursor() as cursor:
        columns = ", ".join(TimerEntry._fields)
        cursor.execute(f"SELECT {columns} FROM timer_schedules WHERE {condition}", values)
        return [_to_entry(row) for row in cursor.fetchall()]


# --- rows -----------------------------------------------------------------------------------------------------


def _to_row(timer: Timer, now: datetime) -> tuple[Any, ...]:
    return (
        timer.tenant_id, timer.service_call_id, timer.correlation_id, timer.due_at, now,
        TimerState.SCHEDULED.value, timer.shard_id, timer.host, timer.request_bytes,
    )  # fmt: skip


def _to_timer(row: tuple[Any, ...]) -> Timer:
    tenant_id, service_call_id, correlation_id, due_at, *others = row
    return Timer(
        _to_tenant_id(tenant_id), as_uuid(service_call_id), as_uuid(correlation_id), as_utc(due_at), *others
    )


def _to_entry(row: tuple[Any, ...]) -> TimerEntry:
    tenant_id, service_call_id, correlation_id, due_at, registered_at, reached_at, state, request_bytes = row
    return TimerEntry(
        _to_tenant_id(tenant_id),
        as_uuid(service_call_id),
        as_uuid(correlation_id),
        as_utc(due_at),
        as_utc(registered_at),
        None if reached_at is None else as_utc(reached_at),
        TimerState(state),
        request_bytes,
    )


@lru_cache(32_768)  # the same ids come again and again
def _to_tenant_id(value: Any) -> UUID:
    return as_uuid(value)


def _to_database(instant: datetime) -> Any:
    return connection.ops.adapt_datetimefield_value(instant)

"""Database time: one instant per mutation transaction, in SQL (`DbNow`) and in Python (`db_now`) alike.

Every process of a deployment agrees on the database's clock and on no other, so it alone decides what is due,
what a lease is worth and what a timestamp says. How each database renders it stands here and nowhere else:

| database   | inside a transaction                                    | outside one        |
|------------|---------------------------------------------------------|--------------------|
| SQLite     | the temp table that the backend seeds when it begins    | `strftime(..'now')` |
| PostgreSQL | `CURRENT_TIMESTAMP`, which is transaction time          | the same           |
| MariaDB    | the instant that the backend reads when it begins       | `CURRENT_TIMESTAMP(6)` |
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import connection, models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.expressions import Expression
from django.utils.dateparse import parse_datetime

SQLITE_NOW_TABLE = "temp.stable_now"
# Milliseconds are what SQLite's clock gives; six digits keep stored texts of one width, so that they sort.
SQLITE_FORMAT = "%Y-%m-%d %H:%M:%f000"

_pinned: ContextVar[datetime | None] = ContextVar("pinned_database_time", default=None)

Sql = tuple[str, list[Any]]


class DbNow(Expression):
    """The database's present time, moved by `offset`."""

    output_field = models.DateTimeField()

    def __init__(self, offset: timedelta = timedelta()) -> None:
        super().__init__()
        self.offset = offset

    def as_sql(self, compiler: Any, connection: BaseDatabaseWrapper) -> Sql:  # type: ignore[override]
        return _render(connection, self.offset)


def db_now() -> datetime:
    """The same instant for Python."""
    sql, params = render_now()
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {sql}", params)
        return as_utc(cursor.fetchone()[0])


def render_now() -> Sql:
    """The same for a statement in SQL, with its parameters."""
    return _render(connection, timedelta())


@contextmanager
def pin_time(instant: datetime) -> Iterator[None]:
    """For tests: within it, database time stands still at `instant`."""
    token = _pinned.set(instant)
    try:
        yield
    finally:
        _pinned.reset(token)


def _render(connection: BaseDatabaseWrapper, offset: timedelta) -> Sql:
    pinned = _pinned.get()
    if pinned is not None:
        return _literal(connection, pinned + offset)
    match connection.vendor:
        case "sqlite":
            return _sqlite(connection, offset)
        case "postgresql":
            return _moved("CURRENT_TIMESTAMP", "{now} + %s * INTERVAL '1 microsecond'", offset)
        case _:
            return _mariadb(connection, offset)


def _sqlite(connection: Any, offset: timedelta) -> Sql:
    base = f"(SELECT ts FROM {SQLITE_NOW_TABLE})" if connection.in_atomic_block else "'now'"
    if offset or base == "'now'":
        modifier = f", '{offset.total_seconds():+.3f} seconds'" if offset else ""
        return f"strftime('{SQLITE_FORMAT.replace('%', '%%')}', {base}{modifier})", []
    return base, []


def _mariadb(connection: Any, offset: timedelta) -> Sql:
    if connection.transaction_now is not None:
        return _literal(connection, connection.transaction_now.replace(tzinfo=UTC) + offset)
    return _moved("CURRENT_TIMESTAMP(6)", "TIMESTAMPADD(MICROSECOND, %s, {now})", offset)


def _moved(now: str, arithmetic: str, offset: timedelta) -> Sql:
    if not offset:
        return now, []
    return f"({arithmetic.format(now=now)})", [offset // timedelta(microseconds=1)]


def _literal(connection: BaseDatabaseWrapper, instant: datetime) -> Sql:
    value = connection.ops.adapt_datetimefield_value(instant)
    match connection.vendor:
        case "postgresql":
            return "%s::timestamptz", [value]
        case "sqlite":
            return "%s", [value]
        case _:
            return "CAST(%s AS DATETIME(6))", [value]


def as_utc(value: Any) -> datetime:
    """A timestamp as a raw cursor gives it: a text on SQLite, naive on MariaDB."""
    if isinstance(value, str):
        value = parse_datetime(value)
    if value.tzinfo is None:
        return value.replace(tzinfo=UTC)  # type: ignore[no-any-return]
    return value.astimezone(UTC)  # type: ignore[no-any-return]


def to_rfc3339(moment: datetime) -> str:
    """UTC, in milliseconds: how the outside sees every time."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

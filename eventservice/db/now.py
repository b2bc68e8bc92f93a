"""Database time: one instant per mutation transaction, in SQL (`DbNow`) and in Python (`db_now`) alike.

All processes of a deployment share the database's clock and no other. It alone decides what is due, when a lease
ends and what a timestamp says. Each dialect's strategy renders it (eventservice.db.dialects.now_strategy):

| database   | inside a transaction                                    | outside one        |
|------------|---------------------------------------------------------|--------------------|
| SQLite     | the temp table that the backend seeds when it begins    | `strftime(..'now')` |
| PostgreSQL | `CURRENT_TIMESTAMP`, which is transaction time          | the same           |
| MariaDB, MySQL | the instant that the backend reads when it begins   | `CURRENT_TIMESTAMP(6)` |

This goes for reads as well: a query inside a transaction that writes sees the same time as the statements that write,
and not the time at which it runs. SQLite's clock has milliseconds, the others have microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from django.db import connection, models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.expressions import Expression
from django.utils.dateparse import parse_datetime

from eventservice.db.dialects import get_dialect
from eventservice.db.dialects.now_strategy import DbNowStrategy, Sql, TimestampStorage

if TYPE_CHECKING:
    from django.db.models.sql.compiler import SQLCompiler

_pinned: ContextVar[datetime | None] = ContextVar("pinned_database_time", default=None)

ISO_TEXT, EPOCH_MS = TimestampStorage.ISO_TEXT, TimestampStorage.EPOCH_MS


class DbNow(Expression):
    """The database's present time, moved by `offset`: a moment, or an integer for a column of epoch milliseconds."""

    def __init__(self, offset: timedelta = timedelta(), storage: TimestampStorage = ISO_TEXT) -> None:
        super().__init__(models.BigIntegerField() if storage is EPOCH_MS else models.DateTimeField())
        self.offset = offset
        self.storage = storage

    def as_sql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> Sql:  # type: ignore[override]
        return _render(connection, self.offset, self.storage)


def db_now() -> datetime:
    """Return the transaction's time."""
    sql, params = render_now()
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {sql}", params)
        return as_utc(cursor.fetchone()[0])


def db_now_ms() -> int:
    """Return the transaction's time in whole milliseconds since 1970, as `doctor` compares it with a host's clock."""
    sql, params = render_now(storage=EPOCH_MS)
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {sql}", params)
        return int(cursor.fetchone()[0])


def render_now(offset: timedelta = timedelta(), storage: TimestampStorage = ISO_TEXT) -> Sql:
    """Return the transaction's time, moved by `offset`, as SQL with its parameters."""
    return _render(connection, offset, storage)


def get_now_strategy(connection: BaseDatabaseWrapper) -> DbNowStrategy:
    """Return the strategy of a connection's dialect. Raise ImproperlyConfigured for a backend that has none."""
    return get_dialect(connection).now_strategy


@contextmanager
def pin_time(instant: datetime) -> Iterator[None]:
    """Make database time stand still at `instant`, in tests."""
    token = _pinned.set(instant)
    try:
        yield
    finally:
        _pinned.reset(token)


def _render(connection: BaseDatabaseWrapper, offset: timedelta, storage: TimestampStorage) -> Sql:
    strategy = get_now_strategy(connection)
    pinned = _pinned.get()
    if pinned is not None:
        return strategy.render_instant(connection, pinned + offset, storage)
    return strategy.render_now(connection, offset, storage)


def as_utc(value: Any) -> datetime:
    """Return a timestamp that a raw cursor has read: a string on SQLite, a naive datetime on MariaDB."""
    if isinstance(value, str):
        value = parse_datetime(value)
    if value.tzinfo is None:
        return value.replace(tzinfo=UTC)  # type: ignore[no-any-return]
    return value.astimezone(UTC)  # type: ignore[no-any-return]


def to_rfc3339(moment: datetime) -> str:
    """Return a moment in UTC with milliseconds, as API and events show it."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

"""The strategies by which the databases render `DbNow` (eventservice.db.now). Each dialect has one.

A strategy says what a connection runs once (`setup`), what each transaction runs first (`prelude`), and which
expression is the present time, moved by an offset, in either storage mode.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

Sql = tuple[str, list[Any]]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class TimestampStorage(StrEnum):
    """The storage modes of a moment."""

    # As in a DateTimeField: a string on SQLite, a timestamp on the other databases.
    ISO_TEXT = "iso-text"
    # The whole milliseconds since 1970, as an integer.
    EPOCH_MS = "epoch-ms"


class DbNowStrategy(ABC):
    """The rendering of the database's present time, which is the same in all of a transaction."""

    setup = ""
    prelude = ""
    # A parameter with the type that the present time has in either mode.
    timestamp_parameter = "%s"
    epoch_ms_parameter = "%s"

    @abstractmethod
    def render_now(self, connection: Any, offset: timedelta, storage: TimestampStorage) -> Sql:
        """Return the present time, moved by `offset`."""

    def render_instant(self, connection: Any, instant: datetime, storage: TimestampStorage) -> Sql:
        """Return a fixed time, with the type that the present time has."""
        if storage is TimestampStorage.EPOCH_MS:
            return self.epoch_ms_parameter, [to_epoch_ms(instant)]
        return self.timestamp_parameter, [connection.ops.adapt_datetimefield_value(instant)]


def render_moved(now: str, arithmetic: str, offset: timedelta) -> Sql:
    """Return `now`, or `arithmetic` with the microseconds of the offset as its parameter."""
    if not offset:
        return now, []
    return f"({arithmetic.format(now=now)})", [offset // timedelta(microseconds=1)]


def to_epoch_ms(instant: datetime) -> int:
    """Return the whole milliseconds from 1970 until a moment."""
    return (instant - EPOCH) // timedelta(milliseconds=1)

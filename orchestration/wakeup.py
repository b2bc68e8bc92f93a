"""Noticing that something was written, without asking the tables.

SQLite tells in microseconds whether another connection has committed. The other databases cannot be asked so
cheaply, so there the answer is "perhaps", often while there is work and seldom while there is none.
"""

from __future__ import annotations

import time

from django.db import connection

BUSY_SECONDS = 0.002
IDLE_SECONDS = 0.02
BUSY_FOR_SECONDS = 2.0
LONGEST_IDLE_SECONDS = 0.5


class ChangeWatch:
    def __init__(self) -> None:
        self._version: int | None = None
        self._last_work = 0.0
        self._ask_at = 0.0
        self._interval = IDLE_SECONDS

    def worked(self) -> None:
        """There was something to do: more is likely to come soon."""
        self._last_work = time.monotonic()
        self._interval = IDLE_SECONDS

    @property
    def pause(self) -> float:
        """How long to sleep before it is worth asking again."""
        if connection.vendor == "sqlite":
            return BUSY_SECONDS if time.monotonic() - self._last_work < BUSY_FOR_SECONDS else IDLE_SECONDS
        return max(0.0, self._ask_at - time.monotonic())

    def changed(self) -> bool:
        return self._changed_sqlite() if connection.vendor == "sqlite" else self._perhaps()

    def _changed_sqlite(self) -> bool:
        connection.ensure_connection()
        version = connection.connection.execute("PRAGMA data_version").fetchone()[0]
        changed = version != self._version
        self._version = version
        return bool(changed)

    def _perhaps(self) -> bool:
        now = time.monotonic()
        if now < self._ask_at:
            return False
        self._ask_at = now + self._interval
        self._interval = min(LONGEST_IDLE_SECONDS, self._interval * 1.5)
        return True

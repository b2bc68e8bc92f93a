"""Noticing commits of other processes on SQLite, without asking the tables.

SQLite answers in microseconds whether another connection has committed (`PRAGMA data_version`), and the kernel reports
when there is a reason to ask: it watches the folder for writes to the write-ahead log. A write to the log precedes its
commit by as long as the disk takes, so a notice means asking often for a moment. A thread does that on a connection of
its own: a sleeping loop is woken only by a commit.
"""

from __future__ import annotations

import ctypes
import os
import select
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from django.db import connection

from eventservice.db.dialects.change_watch import ChangeWatch

# After work: more is likely to come soon.
BUSY_FOR_SECONDS = 0.1
BUSY_SECONDS = 0.002
# When to ask after a notice: soon, and for as long as a commit may take. Once a commit has been seen, what comes after
# it is another notice, unless the two were heard as one.
AFTER_NOTICE = tuple(0.001 * 2**n for n in range(8))
AFTER_COMMIT = (0.005, 0.025)
# Writes come in swarms.
SWARM_SECONDS = 0.001
# With notices this is a safety net. Without them (the kernel limits them by user) it is how late a change is seen.
IDLE_SECONDS = 1.0
UNNOTIFIED_SECONDS = 0.02

IN_MODIFY = 0x2
CLOSED_SECONDS = 10.0  # how long the listener may take to notice that it is no longer needed


class SQLiteChangeWatch(ChangeWatch):
    """Asks for the data version, and calls `wake`, from another thread, when a commit should end a sleep."""

    def __init__(self, wake: Callable[[], None], folder: Path) -> None:
        self._wake = wake
        self._closed = False
        self._version = DataVersion()
        self._busy_until = 0.0
        self._idle = IDLE_SECONDS if self._listen(folder) else UNNOTIFIED_SECONDS

    def close(self) -> None:
        self._closed = True

    def record_work(self) -> None:
        self._busy_until = time.monotonic() + BUSY_FOR_SECONDS

    @property
    def pause(self) -> float:
        return BUSY_SECONDS if time.monotonic() < self._busy_until else self._idle

    def has_changed(self) -> bool:
        connection.ensure_connection()
        with connection.wrap_database_errors:
            return self._version.has_changed(connection.connection)

    def _listen(self, folder: Path) -> bool:
        notices = _open_notices(folder)
        if notices is None:
            return False
        own = connection.Database.connect(**connection.get_connection_params())  # type: ignore[attr-defined]
        threading.Thread(target=self._hear, args=(notices, own), name="change-watch", daemon=True).start()
        return True

    def _hear(self, notices: int, own: Any) -> None:
        version = DataVersion()
        while not self._closed:
            if _wait_for_notice(notices, CLOSED_SECONDS):
                with suppress(own.Error):  # the sleeping loop will see it too, and report it
                    self._await_commit(notices, lambda: version.has_changed(own))
        own.close()
        os.close(notices)

    def _await_commit(self, notices: int, has_changed: Callable[[], bool]) -> None:
        """Ask until the noticed write has been committed. Meanwhile, a loop that has work asks for itself."""
        pauses = [*AFTER_NOTICE]
        while pauses:
            if (busy := self._busy_until - time.monotonic()) > 0:
                time.sleep(busy)
                pauses = [*AFTER_NOTICE]
            elif _wait_for_notice(notices, pauses.pop(0)):
                time.sleep(SWARM_SECONDS)
                pauses = [*AFTER_NOTICE]
            if has_changed():
                self._wake()
                pauses = [*AFTER_COMMIT]


class DataVersion:
    """SQLite's data version. It changes when another connection than the asking one has committed."""

    def __init__(self) -> None:
        self._last: int | None = None

    def has_changed(self, raw: Any) -> bool:
        before, (self._last,) = self._last, raw.execute("PRAGMA data_version").fetchone()
        return before != self._last


def _wait_for_notice(notices: int, timeout: float) -> bool:
    heard = bool(select.select([notices], [], [], timeout)[0])
    if heard:
        os.read(notices, 65536)
    return heard


def _open_notices(folder: Path) -> int | None:
    libc = ctypes.CDLL(None, use_errno=True)
    notices = libc.inotify_init1(os.O_CLOEXEC)
    if notices < 0:
        return None
    if libc.inotify_add_watch(notices, os.fsencode(folder), IN_MODIFY) < 0:
        os.close(notices)
        return None
    return int(notices)

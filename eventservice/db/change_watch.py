"""Noticing that another process has written, without asking the tables.

SQLite answers in microseconds whether another connection has committed (`PRAGMA data_version`), and the kernel tells
when there is a reason to ask: it watches the folder for writes to the write-ahead log. A write to the log precedes its
commit by as long as the disk takes, so a notice means asking often for a moment. A thread does that on a connection of
its own: whoever naps is woken by a commit, and not by every notice and every question.

The other databases cannot be asked so cheaply: there the answer is "perhaps", often while there is work and
seldom while there is none.
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

# After work: more is likely to come soon.
BUSY_FOR_SECONDS = 0.1
BUSY_SECONDS = 0.002
# When it is asked after a notice: soon, and for as long as a commit may take. Once one has been seen, what comes after
# it is another notice, unless the two were heard as one.
NOTICED = tuple(0.001 * 2**n for n in range(8))
SEEN = (0.005, 0.025)
# Writes come in swarms.
SWARM_SECONDS = 0.001
# With notices this is a safety net; without them (the kernel gives a user only so many) it is how late a change is seen.
IDLE_SECONDS = 1.0
UNNOTIFIED_SECONDS = 0.02
# On the other databases, while there is work.
OFTEN_SECONDS = 0.02

IN_MODIFY = 0x2
CLOSED_SECONDS = 10.0  # how late the listener sees that nobody needs it any more


class ChangeWatch:
    """`wake` is called, from another thread, when a nap that is under way should end. `seldom`: how often to look
    where looking is the only way, while there is nothing to do."""

    def __init__(self, wake: Callable[[], None], seldom: float) -> None:
        self._wake = wake
        self._closed = False
        self._version = DataVersion()
        self._busy_until = 0.0
        self._ask_at = 0.0
        self._interval = OFTEN_SECONDS
        self._seldom = seldom
        self._sqlite = connection.vendor == "sqlite"
        self._idle = UNNOTIFIED_SECONDS
        if self._sqlite and self._listen(Path(connection.settings_dict["NAME"]).parent):
            self._idle = IDLE_SECONDS

    def close(self) -> None:
        """The thread that listens ends by itself, soon."""
        self._closed = True

    def worked(self) -> None:
        """There was something to do."""
        self._busy_until = time.monotonic() + BUSY_FOR_SECONDS
        self._interval = OFTEN_SECONDS

    @property
    def pause(self) -> float:
        """How long to nap before it is worth asking again."""
        now = time.monotonic()
        if not self._sqlite:
            return max(0.0, self._ask_at - now)
        return BUSY_SECONDS if now < self._busy_until else self._idle

    def changed(self) -> bool:
        return self._version_changed() if self._sqlite else self._perhaps()

    def _version_changed(self) -> bool:
        connection.ensure_connection()
        with connection.wrap_database_errors:
            return self._version.has_changed(connection.connection)

    def _perhaps(self) -> bool:
        now = time.monotonic()
        if now < self._ask_at:
            return False
        self._ask_at = now + self._interval
        self._interval = min(self._seldom, self._interval * 1.5)
        return True

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
            if _noticed(notices, CLOSED_SECONDS):
                with suppress(own.Error):  # whoever naps will see it too, and say so
                    self._look_out(notices, lambda: version.has_changed(own))
        own.close()
        os.close(notices)

    def _look_out(self, notices: int, has_changed: Callable[[], bool]) -> None:
        """Until what was noticed has been committed. Who has work asks by itself meanwhile."""
        pauses = [*NOTICED]
        while pauses:
            if (busy := self._busy_until - time.monotonic()) > 0:
                time.sleep(busy)
                pauses = [*NOTICED]
            elif _noticed(notices, pauses.pop(0)):
                time.sleep(SWARM_SECONDS)
                pauses = [*NOTICED]
            if has_changed():
                self._wake()
                pauses = [*SEEN]


class DataVersion:
    """Of SQLite: it changes when another connection has committed than the one that asks."""

    def __init__(self) -> None:
        self._last: int | None = None

    def has_changed(self, raw: Any) -> bool:
        before, (self._last,) = self._last, raw.execute("PRAGMA data_version").fetchone()
        return before != self._last


def _noticed(notices: int, timeout: float) -> bool:
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

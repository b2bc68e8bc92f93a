"""Noticing that another process has written, without asking the tables.

SQLite answers in microseconds whether another connection has committed (`PRAGMA data_version`), and the kernel tells
when there is a reason to ask: it watches the folder for writes to the write-ahead log. A write to the log precedes its
commit by as long as the disk takes, so a notice means asking often for a moment.

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
from pathlib import Path

from django.db import connection

# After work: more is likely to come soon.
BUSY_FOR_SECONDS = 0.1
BUSY_SECONDS = 0.002
# After a notice: asked again after 1, 2, 4 … milliseconds, for so long; and for less once a commit has been seen, for
# what comes after that is another notice, unless the two were heard as one. Each time wakes a sleeping process.
ALERT_SECONDS = 0.2
SEEN_SECONDS = 0.03
# With notices this is a safety net; without them (the kernel gives a user only so many) it is how late a change is seen.
IDLE_SECONDS = 0.5
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
        self._version: int | None = None
        self._busy_until = 0.0
        self._noticed_at = self._alert_until = 0.0
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
        if now < self._busy_until:
            return BUSY_SECONDS
        return max(0.001, now - self._noticed_at) if now < self._alert_until else self._idle

    def changed(self) -> bool:
        return self._version_changed() if self._sqlite else self._perhaps()

    def _version_changed(self) -> bool:
        connection.ensure_connection()
        with connection.wrap_database_errors:
            version = connection.connection.execute("PRAGMA data_version").fetchone()[0]
        changed = version != self._version
        if changed:
            self._alert_until = min(self._alert_until, time.monotonic() + SEEN_SECONDS)
        self._version = version
        return bool(changed)

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
        threading.Thread(target=self._hear, args=(notices,), name="change-watch", daemon=True).start()
        return True

    def _hear(self, notices: int) -> None:
        while not self._closed:
            if not select.select([notices], [], [], CLOSED_SECONDS)[0]:
                continue
            os.read(notices, 65536)
            self._noticed_at = time.monotonic()
            self._alert_until = self._noticed_at + ALERT_SECONDS
            if self._noticed_at >= self._busy_until:
                self._wake()
            # Writes come in swarms.
            time.sleep(BUSY_SECONDS)
        os.close(notices)


def _open_notices(folder: Path) -> int | None:
    libc = ctypes.CDLL(None, use_errno=True)
    notices = libc.inotify_init1(os.O_CLOEXEC)
    if notices < 0:
        return None
    if libc.inotify_add_watch(notices, os.fsencode(folder), IN_MODIFY) < 0:
        os.close(notices)
        return None
    return int(notices)

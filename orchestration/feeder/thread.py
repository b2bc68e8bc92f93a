"""The thread of an engine's process that feeds timers from one store."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from django.db import DatabaseError, connections
from django.db.utils import InterfaceError

from eventservice.kernel.boot_time import read_boot_time
from eventservice.kernel.errors import DomainError
from eventservice.kernel.logging import get_logger
from eventservice.tenants.directory import list_namespaces_in_store
from orchestration.feeder.database_calls import DatabaseCalls
from orchestration.feeder.feeder import DEFAULT_OPTIONS, Feeder, FeederOptions
from timers.cell import get_cell_id
from timers.stores.port import TimerStore, TimerStoreError

log = get_logger(__name__)

# Between two passes, unless there is more to do.
PASS_SECONDS = 2.0
# Whether attempts have started, so that there is room for what the last pass has left.
ROOM_SECONDS = 0.1
# While no namespace uses the store.
IDLE_SECONDS = 5.0
# After a pass that the store or the database did not allow.
MAX_BACKOFF_SECONDS = 10.0


class FeederThread:
    """Feeds timers from one store, with database connections of its own, until it is stopped."""

    def __init__(
        self, name: str, build_store: Callable[[str], TimerStore], options: FeederOptions = DEFAULT_OPTIONS
    ) -> None:
        """`build_store` returns the store as the cell with this id sees it."""
        self._name = name
        self._build_store = build_store
        self._options = options
        self._is_stopping, self._may_end = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"feeder-{name}", daemon=True)
        self._store: TimerStore | None = None
        self._feeder: Feeder | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Let the thread take nothing more, and release its shards."""
        self._is_stopping.set()

    def join(self, seconds: float) -> None:
        """Wait until the thread has written to the store how the attempts have ended, at most that long."""
        self._may_end.set()
        if self._thread.ident is not None:
            self._thread.join(seconds)

    def _run(self) -> None:
        pause = 0.0
        try:
            while not self._wait(pause):
                pause = self._step(pause)
            self._leave()
        finally:
            connections.close_all()

    def _wait(self, pause: float) -> bool:
        """Wait for the next pass, at most that long. Return whether the thread is to stop."""
        feeder = self._feeder
        if feeder is None or not feeder.waits_for_room():
            return self._is_stopping.wait(pause)
        end = time.monotonic() + pause
        while (left := end - time.monotonic()) > 0 and not self._is_stopping.wait(min(left, ROOM_SECONDS)):
            # The next pass reports an error.
            with suppress(DatabaseError, InterfaceError, DomainError):
                if feeder.has_new_room():
                    break
        return self._is_stopping.is_set()

    def _step(self, last_pause: float) -> float:
        """Make one pass. Return how long to wait before the next."""
        try:
            feeder = self._get_feeder()
            if feeder is None:
                return IDLE_SECONDS
            result = feeder.run_pass()
            if result.unknown:
                log.warning("timers_unknown", store=self._name, timers=result.unknown)
            return 0.0 if result.has_more and (result.fed or result.applied) else PASS_SECONDS
        except TimerStoreError as error:
            log.error("timer_store_trouble", store=self._name, error=str(error))
        except (DatabaseError, InterfaceError) as error:
            log.error("feeder_database_trouble", store=self._name, error=str(error))
            connections["default"].close_if_unusable_or_obsolete()
        except Exception:
            log.exception("feeder_pass_failed", store=self._name)
        return min(MAX_BACKOFF_SECONDS, max(1.0, 2 * last_pause))

    def _get_feeder(self) -> Feeder | None:
        if self._feeder is None and list_namespaces_in_store(self._name):
            cell = str(get_cell_id())
            self._store = self._build_store(cell)
            metadata = {"hostname": socket.gethostname(), "processId": str(os.getpid()), "cell": cell}
            calls = DatabaseCalls(self._name)
            self._feeder = Feeder(
                self._store, calls, clock=read_boot_time, options=self._options, metadata=metadata
            )
        return self._feeder

    def _leave(self) -> None:
        if self._feeder is None or self._store is None:
            return
        try:
            self._feeder.leave()
            self._may_end.wait()
            self._feeder.end_takes()
        except (TimerStoreError, DatabaseError, InterfaceError) as error:
            log.warning("timer_store_not_left", store=self._name, error=str(error))
        self._store.close()

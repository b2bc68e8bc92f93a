"""The state of each process of a cluster: until when it may work, and whether the main process still exists.

The main process holds the write end of a pipe, the *lifeline*, that all others can read. However the main process ends,
the pipe ends with it. A thread of each other process watches for that, and for the end of the time that the process has
to stop. It needs no database and no main thread, both of which may be stuck at that moment. A second pipe, *presence*,
works the other way: it ends when all other processes have ended. docs/decisions/0026 has the reasons.
"""

from __future__ import annotations

import math
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.sharedctypes import RawValue, Synchronized
from typing import Any

from django.conf import settings
from django.db import connection

from eventservice.kernel.logging import get_logger

log = get_logger(__name__)

# How long attempts in flight may take to finish when the cluster's main process is gone. Whoever starts the next cluster
# does not know of this one.
ORPHAN_GRACE_SECONDS = 3.0
# How much longer than this grace, or SHUTDOWN_SECONDS, each may take to stop before it is killed: a worker ends itself, the
# sentinel ends the workers that could not, and so on. docs/operations.md promises less than 10 s.
EXIT_GRACE_SECONDS = 5
SENTINEL_KILLS_AFTER_SECONDS = 6.0
SENTINEL_EXIT_GRACE_SECONDS = 7.5
MAIN_KILLS_AFTER_SECONDS = 8.5
# How often the thread looks whether the cluster stops.
WATCH_SECONDS = 0.25
# How often a worker that makes progress says so.
PROGRESS_SECONDS = 0.5

# The exit status of a process that had to be killed, or that ended without having recorded its results.
EXIT_INCOMPLETE = 1


class ClusterProcess:
    """The state of one process of the cluster. A forked process gets a copy of its parent's."""

    def __init__(self) -> None:
        # Of a worker only: the whole seconds after which the sentinel declares it frozen and kills it.
        self.countdown: Synchronized[float] | None = None
        # When attempts in flight must have finished, by the monotonic clock: for the cluster, shared by its processes
        # without a lock, which a killed process could keep, and for this process alone. 0 while it works.
        self._cluster_stop_by = RawValue("d", 0.0)
        self._own_stop_by = 0.0
        self._lifeline = self._presence = (-1, -1)  # read end, write end
        self._terminated = False
        self._is_over = False
        self._record_progress_at = 0.0

    # --- stopping ---

    @property
    def stop_by(self) -> float | None:
        """The moment at which attempts in flight must have finished, or None while the cluster works."""
        return min(filter(None, (self._cluster_stop_by.value, self._own_stop_by)), default=None)

    def is_stopping(self) -> bool:
        return self.stop_by is not None

    @property
    def grace_left(self) -> float:
        """The seconds that attempts in flight may still take, once the cluster stops."""
        return max(0.0, (self.stop_by or 0.0) - time.monotonic())

    def stop_cluster(self, grace_seconds: float) -> None:
        """Have all processes stop. Safe in a signal handler. Only the first call counts."""
        if not self._cluster_stop_by.value:
            self._cluster_stop_by.value = time.monotonic() + grace_seconds

    def stop_alone(self, grace_seconds: float) -> None:
        """Have this process stop, within the shortest grace that it is given."""
        stop_by = time.monotonic() + grace_seconds
        self._own_stop_by = min(self._own_stop_by or stop_by, stop_by)

    @property
    def is_orphaned(self) -> bool:
        """Whether the main process of the cluster is gone. Bytes in the lifeline say nothing of it."""
        read_end, _ = self._lifeline
        if read_end == -1:
            return False
        poller = select.poll()
        poller.register(read_end, 0)  # the end of a pipe is always reported
        return bool(poller.poll(0))

    def exit_if_terminated(self) -> None:
        if self._terminated:
            sys.exit()

    def handle_sigterm(self) -> None:
        """Stop gracefully on SIGTERM, which systemd sends to each process of the cluster."""
        signal.signal(signal.SIGTERM, self._terminate)

    def _terminate(self, number: int, frame: object) -> None:
        self._terminated = True
        self.stop_alone(settings.SHUTDOWN_SECONDS)
        # django-q2 also sends SIGTERM to a worker that hangs.
        signal.alarm(math.ceil(self.grace_left) + EXIT_GRACE_SECONDS)

    # --- the time of a task ---

    def extend_task_deadline(self, seconds: float) -> None:
        """Allow the current task that many seconds from now.

        Both of django-q2's clocks are set again: the alarm in this process, and the countdown in the sentinel.
        """
        if self.countdown is not None:
            signal.alarm(math.ceil(seconds))
            # The sentinel decrements it by whole seconds (guard_cycle) and compares it with 0.
            self.countdown.value = math.ceil(seconds) + EXIT_GRACE_SECONDS

    def record_progress(self) -> None:
        """Restart the time after which this worker is declared frozen: it works, however long it has to wait.

        While the cluster stops, the time is fixed.
        """
        now = time.monotonic()
        if now >= self._record_progress_at and not self.is_stopping():
            self._record_progress_at = now + PROGRESS_SECONDS
            self.extend_task_deadline(settings.FROZEN_SECONDS)

    def watch_statements(self) -> None:
        """Record progress before each statement: several that wait for a lock may take longer than one may alone."""
        connection.execute_wrappers.append(self._execute)

    def _execute(self, execute: Callable[..., object], *args: object) -> object:
        self.record_progress()
        return execute(*args)

    # --- watching ---

    def open_pipes(self) -> None:
        """Create lifeline and presence, in the main process."""
        self._lifeline, self._presence = os.pipe(), os.pipe()

    def close_presence(self) -> None:
        """Close the main process's own end of the presence, after the fork."""
        os.close(self._presence[1])

    def wait_until_alone(self, seconds: float) -> None:
        """Wait until all other processes of the cluster have ended, in the main process."""
        select.select([self._presence[0]], [], [], seconds)

    def watch_lifeline(
        self,
        exit_grace_seconds: float,
        *,
        on_orphaned: Callable[[], object] = lambda: None,
        before_exit: Callable[[], object] = lambda: None,
    ) -> None:
        """Start the thread that ends this process if it takes longer to stop than its grace and `exit_grace_seconds`.

        If the main process is gone, call `on_orphaned` and stop.
        """
        read_end, write_end = self._lifeline
        if write_end != -1:
            os.close(write_end)
            self._lifeline = read_end, -1  # what this process forks inherits it closed

        def stop() -> None:
            self.stop_alone(min(ORPHAN_GRACE_SECONDS, settings.SHUTDOWN_SECONDS))
            on_orphaned()

        self._watch(read_end, stop, exit_grace_seconds, before_exit)

    @contextmanager
    def stop_on_signals(self, before_exit: Callable[[], object]) -> Iterator[None]:
        """Stop on SIGTERM and Ctrl-C, for a process without a cluster, and end it if the block takes too long then.

        The thread learns of a signal at once, also while the main thread waits for the database.
        """
        signalled, on_signal = os.pipe()
        os.set_blocking(on_signal, False)
        previous = signal.set_wakeup_fd(on_signal, warn_on_full_buffer=False)
        handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        for number in handlers:
            signal.signal(number, lambda *_: None)
        thread = self._watch(
            signalled, lambda: self.stop_alone(settings.SHUTDOWN_SECONDS), EXIT_GRACE_SECONDS, before_exit
        )
        try:
            yield
        finally:
            self._is_over = True
            thread.join()
            signal.set_wakeup_fd(previous)
            for number, handler in handlers.items():
                signal.signal(number, handler)
            for end in (signalled, on_signal):
                os.close(end)

    def _watch(self, read_end: int, on_readable: Callable[[], object], *args: Any) -> threading.Thread:
        args = (read_end, on_readable, *args)
        thread = threading.Thread(target=self._run_watch, args=args, name="lifeline", daemon=True)
        thread.start()
        return thread

    def _run_watch(
        self,
        read_end: int,
        on_readable: Callable[[], object],
        exit_grace_seconds: float,
        before_exit: Callable[[], object],
    ) -> None:
        watched = [read_end]
        while (stop_by := self.stop_by) is None or time.monotonic() < stop_by + exit_grace_seconds:
            if select.select(watched, [], [], WATCH_SECONDS)[0]:
                watched = []
                on_readable()
            if self._is_over:
                return
        try:
            before_exit()
        finally:
            os._exit(EXIT_INCOMPLETE)


this_process = ClusterProcess()

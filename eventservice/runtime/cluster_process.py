"""The state of each process of a cluster: until when it may work, and whether the main process still exists.

The main process holds the write end of a pipe, the *lifeline*, that all others can read. However the main process ends,
the pipe ends with it. A thread of each other process watches for that, and for the end of the time that the process has
to stop. It needs no database and no main thread, both of which may be stuck at that moment. It sleeps while nothing
happens: a byte in the lifeline says that the cluster stops, and nobody reads it, so that all see it. A second pipe,
*presence*, works the other way: it ends when all other processes have ended. docs/decisions/0026 has the reasons.
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
from contextlib import contextmanager, suppress
from multiprocessing.process import BaseProcess
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
# How often a worker that makes progress says so.
PROGRESS_SECONDS = 0.5

# The exit status of a process that had to be killed, or that ended without having recorded its results.
EXIT_INCOMPLETE = 1
# How long to wait for the end of a process that was killed.
KILL_SECONDS = 0.1


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
        # Wakes the thread that watches, when this process is to stop alone.
        self._nudge = (-1, -1)
        # Set by that thread.
        self._has_stop_time = threading.Event()
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
            _write_byte(self._lifeline[1])

    def stop_alone(self, grace_seconds: float) -> None:
        """Have this process stop, within the shortest grace that it is given."""
        stop_by = time.monotonic() + grace_seconds
        self._own_stop_by = min(self._own_stop_by or stop_by, stop_by)
        _write_byte(self._nudge[1])

    def wait_until_stopping(self, seconds: float) -> bool:
        """Wait that long, or until this process is to stop, if it watches its lifeline. Return whether it is to stop."""
        if not self.is_stopping():
            self._has_stop_time.wait(seconds)
        return self.is_stopping()

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

    def watch_child(self, process: BaseProcess, grace_seconds: float) -> None:
        """Wait until the process has ended, in the main process. Kill it if it outlasts the grace by that long."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        with _open_signal_pipe() as signalled:
            while process.is_alive():
                left = self._compute_time_left(grace_seconds)
                if left <= 0:
                    process.kill()
                    process.join(KILL_SECONDS)
                elif select.select([signalled], [], [], None if left == math.inf else left)[0]:
                    os.read(signalled, 4096)

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

        self._watch(read_end, select.POLLHUP, stop, exit_grace_seconds, before_exit)

    @contextmanager
    def stop_on_signals(self, before_exit: Callable[[], object]) -> Iterator[None]:
        """Stop on SIGTERM and Ctrl-C, for a process without a cluster, and end it if the block takes too long then.

        The thread learns of a signal at once, also while the main thread waits for the database.
        """
        handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

        def stop() -> None:
            self.stop_alone(settings.SHUTDOWN_SECONDS)

        with _open_signal_pipe() as signalled:
            for number in handlers:
                signal.signal(number, lambda *_: None)
            thread = self._watch(signalled, select.POLLIN, stop, EXIT_GRACE_SECONDS, before_exit)
            try:
                yield
            finally:
                self._is_over = True
                _write_byte(self._nudge[1])
                thread.join()
                for end in self._nudge:
                    os.close(end)
                self._nudge = -1, -1
                for number, handler in handlers.items():
                    signal.signal(number, handler)

    def _watch(self, *args: Any) -> threading.Thread:
        # Of this process alone: what a forked process has inherited belongs to its parent.
        self._nudge = _open_wake_pipe()
        self._has_stop_time = threading.Event()
        thread = threading.Thread(target=self._run_watch, args=args, name="lifeline", daemon=True)
        thread.start()
        return thread

    def _run_watch(
        self,
        watched: int,
        event: int,
        on_event: Callable[[], object],
        exit_grace_seconds: float,
        before_exit: Callable[[], object],
    ) -> None:
        """Call `on_event` once, when that event of the pipe occurs. End the process when its time is over."""
        nudged = self._nudge[0]
        poller = select.poll()
        poller.register(watched, select.POLLIN)
        poller.register(nudged, select.POLLIN)
        while (left := self._compute_time_left(exit_grace_seconds)) > 0:
            occurred = dict(poller.poll(None if left == math.inf else math.ceil(1000 * left)))
            if self._is_over:
                return
            if nudged in occurred:
                os.read(nudged, 4096)
            if occurred.get(watched, 0) & event:
                poller.unregister(watched)
                on_event()
            elif watched in occurred:
                # The byte stays there. From now on, only the end of the pipe is reported.
                poller.modify(watched, 0)
            if self.is_stopping():
                self._has_stop_time.set()
        try:
            before_exit()
        finally:
            os._exit(EXIT_INCOMPLETE)

    def _compute_time_left(self, exit_grace_seconds: float) -> float:
        """Return the seconds until this process has stopped for too long. They are infinite while it works."""
        stop_by = self.stop_by
        return math.inf if stop_by is None else stop_by + exit_grace_seconds - time.monotonic()


def _open_wake_pipe() -> tuple[int, int]:
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    os.set_blocking(write_end, False)
    return read_end, write_end


@contextmanager
def _open_signal_pipe() -> Iterator[int]:
    """Open a pipe that gets a byte with each signal that has a handler, whatever the main thread does. Yield its read end."""
    read_end, write_end = _open_wake_pipe()
    previous = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    try:
        yield read_end
    finally:
        signal.set_wakeup_fd(previous)
        os.close(read_end)
        os.close(write_end)


def _write_byte(write_end: int) -> None:
    """Write a byte to a pipe, if there is one. Safe in a signal handler."""
    if write_end != -1:
        with suppress(BlockingIOError, BrokenPipeError):
            os.write(write_end, b"\0")


this_process = ClusterProcess()

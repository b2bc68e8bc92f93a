"""Changes to the internals of django-q2, made for versions 1.8 to 1.11 (`SUPPORTED_VERSIONS`, pinned in pyproject.toml).

django-q2 has no settings for what they add:

- Workers learn at once that the cluster stops, not at the end of their slices (`GracefulCluster`).
- SIGTERM to all processes at the same time, as systemd sends it, is a graceful shutdown too (`GracefulSentinel`).
- A task may take longer than `Q_CLUSTER["timeout"]` if it asks for it (`ClusterProcess.extend_task_deadline`).

tests/runtime/test_django_q_patch.py checks the internals that these rely on.
"""

from __future__ import annotations

import math
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing import Event
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event as EventType
from typing import Any

import django_q.cluster
import django_q.worker
from django.conf import settings
from django.db import connection
from django_q.cluster import Cluster, Sentinel
from django_q.signals import post_spawn

SUPPORTED_VERSIONS = ">=1.8,<1.12"

# How often a worker that makes progress says so.
PROGRESS_SECONDS = 0.5
# How much longer than SHUTDOWN_SECONDS a worker may take to stop before it is killed.
EXIT_GRACE_SECONDS = 5


class ClusterProcess:
    """The shutdown state of one process of the cluster. A forked process gets a copy of its parent's."""

    def __init__(self) -> None:
        # Shared by all processes of the cluster.
        self.stop_event: EventType | None = None
        # Of a worker only: the whole seconds after which the sentinel declares it frozen and kills it.
        self.countdown: Synchronized[float] | None = None
        self._terminated = False
        self._record_progress_at = 0.0

    def is_stopping(self) -> bool:
        return self._terminated or (self.stop_event is not None and self.stop_event.is_set())

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

    def exit_if_terminated(self) -> None:
        if self._terminated:
            sys.exit()

    def handle_sigterm(self, **_: object) -> None:
        """Stop gracefully on SIGTERM. A receiver of `post_spawn`, which a worker sends after it has been forked."""
        signal.signal(signal.SIGTERM, self._terminate)
        self.watch_statements()

    def _terminate(self, number: int, frame: object) -> None:
        self._terminated = True
        # django-q2 also sends SIGTERM to a worker that hangs.
        signal.alarm(math.ceil(settings.SHUTDOWN_SECONDS) + EXIT_GRACE_SECONDS)


this_process = ClusterProcess()


class GracefulSentinel(Sentinel):  # type: ignore[misc]
    """django-q2's sentinel, which ignores SIGTERM: only the cluster's main process stops it."""

    def start(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        super().start()

    def spawn_process(self, target: Callable[..., object], *args: Any) -> object:
        # The new process inherits both: the countdown that belongs to it, and the handling of SIGTERM, which it must
        # not ignore because django-q2 ends processes by it.
        is_worker = target is django_q.worker.worker
        this_process.countdown = args[2] if is_worker else None
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        try:
            return super().spawn_process(target, *args)
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)


class GracefulCluster(Cluster):  # type: ignore[misc]
    """django-q2's cluster, which tells its workers as soon as it begins to stop."""

    def __init__(self) -> None:
        self._stopping = this_process.stop_event = Event()
        super().__init__()

    def stop(self) -> bool:
        self._stopping.set()
        return bool(super().stop())


def run_patched_cluster() -> None:
    """Run a cluster until SIGTERM or SIGINT."""
    post_spawn.connect(this_process.handle_sigterm)
    django_q.cluster.Sentinel = GracefulSentinel  # Cluster.start() takes the class from there
    cluster = GracefulCluster()
    cluster.start()
    cluster.sentinel.join()

"""Changes to the internals of django-q2, made for version 1.11 (pinned in pyproject.toml, and checked at start).

django-q2 has no settings for what they add:

- Workers learn at once that the cluster stops, not at the end of their slices, and give up their roles before they end
  (`run_worker`).
- A worker goes on with its role, or looks for one, while it waits for a task (`PlayingQueue`).
- SIGTERM to all processes at the same time, as systemd sends it, is a graceful shutdown too, and so is the death of the
  main process.
- A worker that was replaced as frozen is killed if it does not end by itself (`GracefulSentinel.reincarnate`).
- A cluster stops within a bounded time, whatever its processes wait for (`GracefulSentinel.stop`, `GracefulCluster.run`).
- While the database is in known trouble, a line says so instead of a traceback (`shorten_known_trouble`).
- A task may take longer than `Q_CLUSTER["timeout"]` while it makes progress (`ClusterProcess.record_progress`).

tests/runtime/test_django_q_patch.py checks the internals that these rely on, and tests/runtime/test_django_q_sources.py fails
when any of them changes in the installed version.
"""

from __future__ import annotations

import logging
import multiprocessing
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, Full
from typing import Any

import django_q.cluster
import django_q.monitor
import django_q.pusher
import django_q.worker
from django.conf import settings
from django.db import DatabaseError, InterfaceError
from django_q.cluster import Cluster, Sentinel
from django_q.timeout import TimeoutHandler

from eventservice.db.errors import find_trouble
from eventservice.kernel.logging import get_logger
from eventservice.runtime.cluster_process import (
    EXIT_GRACE_SECONDS,
    EXIT_INCOMPLETE,
    MAIN_KILLS_AFTER_SECONDS,
    ORPHAN_GRACE_SECONDS,
    SENTINEL_EXIT_GRACE_SECONDS,
    SENTINEL_KILLS_AFTER_SECONDS,
    this_process,
)

log = get_logger(__name__)

# The pusher may sleep for Q_CLUSTER["poll"], or wait for a full queue: what it has taken is given out again later. And the
# monitor may have to acknowledge what is left.
PUSHER_SECONDS = 3.0
MONITOR_SECONDS = 1.0
JOIN_SECONDS = 0.1
# A worker that was replaced as frozen, and goes on, ends by itself within EXIT_GRACE_SECONDS.
FROZEN_EXIT_SECONDS = EXIT_GRACE_SECONDS + 2.0
# How often a worker that waits for a task looks for one.
IDLE_SECONDS = 0.5


@dataclass(frozen=True)
class WorkerHooks:
    """The functions that a worker calls while it waits for a task, and at its end."""

    # Plays the role for that many seconds, or looks for one.
    play: Callable[[float], object] = time.sleep
    # Gives up the role. Returns False if results are lost.
    release: Callable[[], bool] = lambda: True
    # Logs what is lost because the worker is ended now. Called by another thread than the main one.
    report_loss: Callable[[], None] = lambda: None


# Set by `run_patched_cluster`, before anything is forked.
worker_hooks = WorkerHooks()


# --- what the cluster's processes run -------------------------------------------------------------------------


def run_worker(task_queue: Any, result_queue: Any, timer: Any, timeout: int) -> None:
    """Run django-q2's worker until the cluster stops, and then give up the role that it plays."""
    this_process.countdown = timer
    this_process.handle_sigterm()
    this_process.watch_statements()
    this_process.watch_lifeline(EXIT_GRACE_SECONDS, before_exit=worker_hooks.report_loss)
    try:
        django_q.worker.worker(PlayingQueue(task_queue, timeout), result_queue, timer, timeout)
    finally:
        # A worker that was interrupted as frozen ends, too: it may have been in the middle of something.
        if not this_process.is_stopping():
            this_process.stop_alone(0)
        signal.alarm(0)
        if not worker_hooks.release():
            sys.exit(EXIT_INCOMPLETE)


class PlayingQueue:
    """The queue from which a worker takes its tasks. While it has none for it, the worker plays its role.

    The next slice may be with another cluster of the same name, or late. A role that waited for it would send no
    heartbeat, and lose its attempts in flight.
    """

    def __init__(self, queue: Any, timeout: int) -> None:
        """`timeout` is the number of seconds without progress after which the worker is interrupted as frozen."""
        self._queue = queue
        self._timeout = timeout

    def get(self) -> object:
        """Return the next task, or the word at which the worker stops."""
        with TimeoutHandler(self._timeout):
            while not this_process.is_stopping():
                try:
                    return self._queue.get(False)
                except Empty:
                    self._play()
        this_process.exit_if_terminated()
        return self._queue.get()

    def _play(self) -> None:
        try:
            worker_hooks.play(IDLE_SECONDS)
        except Exception:
            # As in a slice, which would fail, the role goes on with its next step.
            log.exception("role_failed")
            time.sleep(IDLE_SECONDS)


def run_pusher(task_queue: Any, event: Any, broker: Any = None) -> None:
    this_process.watch_lifeline(EXIT_GRACE_SECONDS)
    django_q.pusher.pusher(task_queue, event, broker)


def run_monitor(result_queue: Any, broker: Any = None) -> None:
    this_process.watch_lifeline(SENTINEL_KILLS_AFTER_SECONDS)
    django_q.monitor.monitor(result_queue, broker)


# --- the sentinel ---------------------------------------------------------------------------------------------


class UnsavedStat:
    """Stands in for django-q2's report of the sentinel, which it would save each second, for no reader.

    The cache that it is saved in belongs to one process. Operators see the nodes in the database instead.
    """

    def __init__(self, sentinel: Sentinel) -> None:
        pass

    def save(self) -> None:
        pass


class StopSignal:
    """Stands in for the event by which the cluster's main process stops the sentinel, and which has a lock."""

    def is_set(self) -> bool:
        return this_process.is_stopping()

    def wait(self, seconds: float) -> bool:
        return this_process.wait_until_stopping(seconds)


class GracefulSentinel(Sentinel):  # type: ignore[misc]
    """django-q2's sentinel, which ignores SIGTERM and waits for no other process without a limit when it stops."""

    def start(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.stop_event = StopSignal()
        super().start()

    def guard(self) -> None:
        # Not earlier: processes are forked before there is a second thread.
        this_process.watch_lifeline(
            SENTINEL_EXIT_GRACE_SECONDS, on_orphaned=_stop_orphans, before_exit=_kill_children
        )
        super().guard()

    def spawn_process(self, target: Callable[..., object], *args: Any) -> object:
        # The new process must not ignore SIGTERM, because django-q2 ends processes by it.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        try:
            return super().spawn_process(target, *args)
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def reincarnate(self, process: Any) -> None:
        # The line of django-q2 has the name of the process only. With its id, the line `node_reaped` says what it ran.
        log.warning("process_replaced", name=process.name, pid=process.pid, exit_code=process.exitcode)
        is_frozen = process in self.pool and process.timer.value == 0
        super().reincarnate(process)
        if is_frozen:
            # It has been sent SIGTERM, which a process that is stopped does not obey. It may hold locks of the database.
            killing = threading.Timer(FROZEN_EXIT_SECONDS, _kill_frozen, [process])
            killing.daemon = True
            killing.start()

    def stop(self) -> None:
        """Stop pusher, workers and monitor in this order. Exit with 1 if a worker may have lost results."""
        stop_by = this_process.stop_by or time.monotonic()
        self.event_out.set()
        _wait_for([self.pusher], time.monotonic() + PUSHER_SECONDS)
        self._stop_workers(stop_by + SENTINEL_KILLS_AFTER_SECONDS)
        self.result_queue.put("STOP")
        _wait_for([self.monitor], time.monotonic() + MONITOR_SECONDS)
        _kill_children()
        # Whatever is left in the queues is in the database, too, and nobody reads them now.
        self.task_queue.cancel_join_thread()
        self.result_queue.cancel_join_thread()
        if any(worker.exitcode != 0 for worker in self.pool):
            sys.exit(EXIT_INCOMPLETE)

    def _stop_workers(self, deadline: float) -> None:
        """Tell each worker to stop when it has finished its task, and wait until all have ended or the time is over."""
        told = 0
        while any(worker.is_alive() for worker in self.pool) and time.monotonic() < deadline:
            if told < len(self.pool):
                told += self._tell_worker()
            _wait_for(self.pool, time.monotonic() + JOIN_SECONDS)
        for worker in self.pool:
            if worker.is_alive():
                log.error("worker_killed", process=worker.pid, results="lost, if any were not recorded")
                _kill(worker)

    def _tell_worker(self) -> bool:
        """Queue the word at which a worker stops. If tasks fill the queue, remove one: it is kept in the database."""
        try:
            self.task_queue.put("STOP", False)
        except Full:
            with suppress(Empty):
                self.task_queue.get(False)
            return False
        return True


def _stop_orphans() -> None:
    log.error("main_process_gone", stopping_within=ORPHAN_GRACE_SECONDS + SENTINEL_EXIT_GRACE_SECONDS)
    this_process.stop_cluster(this_process.grace_left)


def _wait_for(processes: Iterable[Any], deadline: float) -> None:
    """Wait until all processes have ended, or for the deadline."""
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))


def _kill_frozen(process: Any) -> None:
    if process.is_alive():
        log.error("worker_killed", process=process.pid, results="lost, if any were not recorded")
        _kill(process)


def _kill_children() -> None:
    for process in multiprocessing.active_children():
        _kill(process)


def _kill(process: Any) -> None:
    process.kill()
    process.join(JOIN_SECONDS)


# --- the log ----------------------------------------------------------------------------------------------------


def shorten_known_trouble(record: logging.LogRecord) -> bool:
    """Replace the traceback of an error that the state of the database explains by that explanation. Keep every record."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, (DatabaseError, InterfaceError)) and (trouble := find_trouble(error)):
        record.msg = f"{record.getMessage()}: {trouble.text} ({' '.join(str(error).split())})"
        record.args, record.exc_info, record.exc_text = (), None, None
    return True


# --- the main process -----------------------------------------------------------------------------------------


class GracefulCluster(Cluster):  # type: ignore[misc]
    """django-q2's cluster, whose processes know at once that it stops, and that does not wait for them for ever."""

    def sig_handler(self, number: int, frame: object) -> None:
        """Begin to stop. A second signal changes nothing: the time until the end is bounded."""
        this_process.stop_cluster(settings.SHUTDOWN_SECONDS)

    def run(self) -> int:
        """Run until SIGTERM or SIGINT. Return the exit status: 0 if everything has stopped as it should."""
        this_process.open_pipes()
        self.start()
        this_process.close_presence()
        this_process.watch_child(self.sentinel, MAIN_KILLS_AFTER_SECONDS)
        if self.sentinel.exitcode == 0:
            return 0
        log.error("cluster_incomplete", stopping=this_process.is_stopping(), sentinel=self.sentinel.exitcode)
        this_process.stop_cluster(min(ORPHAN_GRACE_SECONDS, settings.SHUTDOWN_SECONDS))
        this_process.wait_until_alone(ORPHAN_GRACE_SECONDS + SENTINEL_EXIT_GRACE_SECONDS)
        return EXIT_INCOMPLETE


def run_patched_cluster(hooks: WorkerHooks) -> int:
    """Run a cluster until SIGTERM or SIGINT. Return its exit status."""
    global worker_hooks
    worker_hooks = hooks
    logging.getLogger("django-q").addFilter(shorten_known_trouble)
    # Cluster and Sentinel take these from there.
    patched = {
        "Sentinel": GracefulSentinel,
        "Stat": UnsavedStat,
        "worker": run_worker,
        "pusher": run_pusher,
        "monitor": run_monitor,
    }
    for name, replacement in patched.items():
        setattr(django_q.cluster, name, replacement)
    return GracefulCluster().run()

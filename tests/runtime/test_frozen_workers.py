"""A worker is declared frozen when it makes no progress, and not when it has to wait for the database."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from multiprocessing import Value
from typing import Any

import pytest
from django.db import connection
from django_q.exceptions import TimeoutException
from django_q.timeout import TimeoutHandler

from eventservice.runtime import cluster, worker
from eventservice.runtime.cluster_process import ClusterProcess
from eventservice.runtime.models import Slot
from eventservice.runtime.worker import Worker
from tests.database_locks import hold_locks
from tests.process_harness import ProcessHarness, harness

__all__ = ["harness"]


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[ClusterProcess]:
    """Return this process as if it were a worker of a cluster, with a limit that the test can wait for."""
    process = ClusterProcess()
    process.countdown = Value("f", -1.0)
    for module in (cluster, worker):
        monkeypatch.setattr(module, "this_process", process)
    wrappers, handler = [*connection.execute_wrappers], signal.getsignal(signal.SIGALRM)
    yield process
    connection.execute_wrappers[:] = wrappers
    signal.alarm(0)
    signal.signal(signal.SIGALRM, handler)


class PlayingRole:
    """A role whose steps need no database."""

    def step(self, max_wait: float) -> None:
        time.sleep(min(max_wait, 0.1))

    def stop(self, grace_seconds: float) -> None:
        pass

    def count_in_flight(self) -> int:
        return 0

    def count_unrecorded(self) -> int:
        return 0


def test_a_slice_has_its_whole_time_however_long_it_waited_for_its_ticket(
    harness: ProcessHarness, process: ClusterProcess, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process locks the slots: shorter than the worker's limit, which the slice would exceed all the same."""
    settings.FROZEN_SECONDS, settings.SLICE_SECONDS = 4, 1.5
    playing = Worker()
    monkeypatch.setattr(cluster, "current_worker", lambda: playing)
    monkeypatch.setattr(worker, "ROLES", {"engine": PlayingRole})
    monkeypatch.setattr(cluster, "ROLES", {"engine": PlayingRole})
    cluster.start_chains()
    slot = Slot.objects.get()
    with hold_locks(harness) as holder, TimeoutHandler(settings.FROZEN_SECONDS):
        threading.Timer(3.0, holder.kill).start()
        started_at = time.monotonic()
        cluster.run_slice(slot.name, slot.ticket)
    assert time.monotonic() - started_at > settings.FROZEN_SECONDS
    assert playing.role is not None


def test_a_step_that_stands_still_is_interrupted(
    process: ClusterProcess, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.FROZEN_SECONDS = 1
    monkeypatch.setattr(Worker, "_step", lambda self, left: time.sleep(30))
    with pytest.raises(TimeoutException), TimeoutHandler(60):
        Worker().run_for(60)


@pytest.mark.django_db(transaction=True)
def test_each_statement_is_progress(process: ClusterProcess, settings: Any) -> None:
    process.watch_statements()
    with TimeoutHandler(1), connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        assert signal.alarm(0) == settings.FROZEN_SECONDS
    assert process.countdown is not None
    assert process.countdown.value > settings.FROZEN_SECONDS


def test_a_stopping_cluster_extends_no_time(process: ClusterProcess) -> None:
    process.stop_alone(60)
    with TimeoutHandler(7):
        process.record_progress()
        assert signal.alarm(0) == 7

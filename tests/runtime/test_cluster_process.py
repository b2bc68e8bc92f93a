"""The processes of a cluster sleep until they are told to stop, or until the main process is gone."""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from eventservice.runtime import cluster_process
from eventservice.runtime.cluster_process import ClusterProcess

# A wait that nothing ends would fail the test with a timeout.
LONG_SECONDS = 600.0
MAX_TEST_SECONDS = 60.0


@pytest.fixture
def main() -> Iterator[ClusterProcess]:
    main = ClusterProcess()
    main.open_pipes()
    yield main
    for end in (*main._lifeline, *main._presence):
        if end != -1:
            os.close(end)


@pytest.fixture
def child(main: ClusterProcess) -> Iterator[ClusterProcess]:
    """A process as it is after the fork: it shares the moment of the end, and has copies of the descriptors."""
    child = copy.copy(main)
    child._lifeline = os.dup(main._lifeline[0]), os.dup(main._lifeline[1])
    child.watch_lifeline(LONG_SECONDS)
    yield child
    child._is_over = True
    cluster_process._write_byte(child._nudge[1])
    for thread in threading.enumerate():
        if thread.name == "lifeline":
            thread.join(MAX_TEST_SECONDS)
    os.close(child._lifeline[0])
    for end in child._nudge:
        os.close(end)


def test_a_process_that_waits_learns_at_once_that_the_cluster_stops(
    main: ClusterProcess, child: ClusterProcess
) -> None:
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(child.wait_until_stopping, LONG_SECONDS)
        main.stop_cluster(LONG_SECONDS)
        assert waiting.result(MAX_TEST_SECONDS)
    assert child._own_stop_by == 0.0  # it is not taken for the end of the main process


def test_a_process_that_waits_learns_at_once_that_the_main_process_is_gone(
    main: ClusterProcess, child: ClusterProcess
) -> None:
    for end in main._lifeline:
        os.close(end)
    main._lifeline = -1, -1
    with ThreadPoolExecutor() as pool:
        assert pool.submit(child.wait_until_stopping, LONG_SECONDS).result(MAX_TEST_SECONDS)
    assert child._own_stop_by


def test_the_end_of_the_main_process_is_noticed_while_the_cluster_stops(
    main: ClusterProcess, child: ClusterProcess
) -> None:
    main.stop_cluster(LONG_SECONDS)
    assert child._has_stop_time.wait(MAX_TEST_SECONDS)
    gone = threading.Event()
    stop_alone = child.stop_alone

    def stop(grace_seconds: float) -> None:
        stop_alone(grace_seconds)
        gone.set()

    child.stop_alone = stop  # type: ignore[method-assign]
    for end in main._lifeline:
        os.close(end)
    main._lifeline = -1, -1
    assert gone.wait(MAX_TEST_SECONDS)


def test_a_process_that_waits_learns_at_once_that_it_stops_alone(child: ClusterProcess) -> None:
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(child.wait_until_stopping, LONG_SECONDS)
        child.stop_alone(LONG_SECONDS)
        assert waiting.result(MAX_TEST_SECONDS)
    assert not child._cluster_stop_by.value


def test_nothing_wakes_the_thread_of_a_process_that_works(main: ClusterProcess) -> None:
    assert main._compute_time_left(5.0) == float("inf")

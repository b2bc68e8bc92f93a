"""A worker plays its role whether it has a slice or not."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from queue import Queue

import pytest
from django.db.models import F
from django_q.exceptions import TimeoutException
from django_q.models import OrmQ, Schedule

from eventservice.runtime import django_q_patch
from eventservice.runtime.cluster_process import ClusterProcess
from eventservice.runtime.django_q_patch import PlayingQueue, WorkerHooks
from eventservice.runtime.models import Slot
from eventservice.tenants.directory import create_tenant
from orchestration.models import ServiceCall
from orchestration.states import Status
from outbox.models import WAITING, OutboxEvent
from tests.process_harness import (
    ProcessHarness,
    Program,
    build_call,
    find_role_process,
    harness,
    submit_calls,
    wait_until,
    wait_until_all_ended,
)

__all__ = ["harness"]


def start_cluster(harness: ProcessHarness) -> Program:
    # The shortest that the checks of the settings allow on all databases.
    cluster = harness.start_cluster(SLICE_SECONDS="3")
    for role in ("engine", "dispatcher"):
        wait_until(lambda: find_role_process(role, cluster), f"a worker is the {role}")  # noqa: B023
    return cluster


def void_all_slices() -> None:
    """Void every ticket, and wait until the slices that are left have ended. Nothing restarts the chains."""
    Schedule.objects.all().delete()
    Slot.objects.update(ticket=F("ticket") + 1)
    wait_until(lambda: not OrmQ.objects.exists(), "no slice is left")


def test_calls_are_sent_once_and_events_published_while_no_slice_is_left(harness: ProcessHarness) -> None:
    target, tenant = harness.start_target(), create_tenant("acme").tenant_id
    cluster = start_cluster(harness)
    engine = find_role_process("engine", cluster)
    in_flight = submit_calls(build_call(tenant, f"{target.url}/delay/5") for _ in range(10))
    wait_until(lambda: set(in_flight) <= target.list_call_ids(), "all attempts are in flight")
    void_all_slices()

    later = submit_calls(build_call(tenant, f"{target.url}/ok") for _ in range(10))
    wait_until_all_ended()
    wait_until(lambda: not OutboxEvent.across_tenants.filter(WAITING).exists(), "all events are published")

    assert not OrmQ.objects.exists()
    assert find_role_process("engine", cluster) == engine
    harness.stop(cluster)
    assert {len(requests) for requests in target.group_by_call().values()} == {1}
    assert target.list_call_ids() == {*in_flight, *later}
    outcomes = ServiceCall.objects.for_tenant(tenant).values_list("status", "attempt")
    assert set(outcomes) == {(Status.SUCCEEDED, 1)}


class Tasks(Queue[str]):
    """A queue into which a task is put after the worker has played a number of times."""

    def __init__(self, plays_before: int) -> None:
        super().__init__()
        self._plays_left = plays_before

    def play(self, seconds: float) -> None:
        self._plays_left -= 1
        if self._plays_left == 0:
            self.put("task")


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> ClusterProcess:
    process = ClusterProcess()
    monkeypatch.setattr(django_q_patch, "this_process", process)
    monkeypatch.setattr(django_q_patch, "IDLE_SECONDS", 0.0)
    return process


def get_task(tasks: Tasks, play: Callable[[float], None], monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setattr(django_q_patch, "worker_hooks", WorkerHooks(play=play))
    return PlayingQueue(tasks, timeout=60).get()


def test_a_worker_plays_until_there_is_a_task(
    process: ClusterProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = Tasks(plays_before=3)
    assert get_task(tasks, tasks.play, monkeypatch) == "task"
    assert signal.alarm(0) == 0


def test_a_step_that_fails_ends_no_worker(process: ClusterProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = Tasks(plays_before=2)

    def play(seconds: float) -> None:
        tasks.play(seconds)
        raise ValueError

    assert get_task(tasks, play, monkeypatch) == "task"


def test_a_stopping_worker_waits_for_the_word_to_stop(
    process: ClusterProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = Tasks(plays_before=0)
    tasks.put("STOP")
    process.stop_alone(60)

    def play(seconds: float) -> None:
        pytest.fail("it plays")

    assert get_task(tasks, play, monkeypatch) == "STOP"


def test_a_step_that_stands_still_while_the_worker_waits_is_interrupted(
    process: ClusterProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(django_q_patch, "worker_hooks", WorkerHooks(play=lambda seconds: time.sleep(30)))
    with pytest.raises(TimeoutException):
        PlayingQueue(Tasks(plays_before=0), timeout=1).get()

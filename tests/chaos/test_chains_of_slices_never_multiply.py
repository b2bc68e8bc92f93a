"""The tasks of the django-q2 cluster: a ticket is valid once, and whatever happens, a slot has one chain."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import pytest
from django_q.models import OrmQ

from eventservice.db.now import DbNow
from eventservice.runtime.cluster import restart_stalled_chains, run_slice, start_chains
from eventservice.runtime.cluster_process import this_process
from eventservice.runtime.models import Slot
from eventservice.runtime.slots import slot_name
from eventservice.runtime.worker import ROLES

Task = tuple[str, int]
Elsewhere = Callable[..., Future[Any]]
SLOTS = sorted(slot_name(role) for role in ROLES)


@pytest.fixture(autouse=True)
def slices_end_at_once(transactional_db: None, settings: Any) -> None:
    settings.SLICE_SECONDS = 0


def list_enqueued() -> list[Task]:
    return sorted(tuple(row.task["args"]) for row in OrmQ.objects.all())


def deliver(tasks: list[Task]) -> None:
    """Empty the queue, and run these tasks as a worker would."""
    OrmQ.objects.all().delete()
    for task in tasks:
        run_slice(*task)


def test_a_slice_enqueues_its_successor_first() -> None:
    start_chains()
    assert list_enqueued() == [(slot, 1) for slot in SLOTS]
    deliver(list_enqueued())
    assert list_enqueued() == [(slot, 2) for slot in SLOTS]


def test_a_task_that_is_delivered_twice_has_one_successor() -> None:
    start_chains()
    deliver(list_enqueued() * 2)
    assert list_enqueued() == [(slot, 2) for slot in SLOTS]


def test_a_task_that_is_delivered_twice_at_once_has_one_successor(elsewhere: Elsewhere) -> None:
    start_chains()
    (first, *_) = list_enqueued()
    OrmQ.objects.all().delete()
    for _ in range(10):
        barrier = threading.Barrier(2)

        def run(task: Task, barrier: threading.Barrier = barrier) -> None:
            barrier.wait(5)
            run_slice(*task)

        for delivered in [elsewhere(run, first) for _ in range(2)]:
            delivered.result(20)
        ((slot, ticket),) = list_enqueued()
        assert (slot, ticket) == (first[0], first[1] + 1)
        first = (slot, ticket)
        OrmQ.objects.all().delete()


def test_a_second_start_voids_the_chains_of_the_first() -> None:
    start_chains()
    start_chains()
    deliver(list_enqueued())
    assert list_enqueued() == [(slot, 3) for slot in SLOTS]


def test_two_starts_at_once_leave_one_chain_for_each_slot(elsewhere: Elsewhere) -> None:
    for start in [elsewhere(start_chains) for _ in range(2)]:
        start.result(20)
    deliver(list_enqueued())
    assert [slot for slot, _ in list_enqueued()] == SLOTS


def test_a_chain_that_has_stalled_is_restarted() -> None:
    start_chains()
    OrmQ.objects.all().delete()
    Slot.objects.filter(name=SLOTS[0]).update(taken_at=DbNow(-timedelta(minutes=2)))
    restart_stalled_chains()
    assert list_enqueued() == [(SLOTS[0], 2)]


def test_a_chain_that_has_not_stalled_is_left_alone() -> None:
    start_chains()
    before = list_enqueued()
    restart_stalled_chains()
    assert list_enqueued() == before


def test_a_stopping_cluster_leaves_its_chain_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    start_chains()
    with monkeypatch.context() as stopping:
        stopping.setattr(this_process, "_own_stop_by", time.monotonic())
        deliver(list_enqueued())
        assert list_enqueued() == [(slot, 1) for slot in SLOTS]
    deliver(list_enqueued())
    assert list_enqueued() == [(slot, 2) for slot in SLOTS]

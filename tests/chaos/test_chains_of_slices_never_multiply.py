"""The tasks of the django-q2 cluster: a ticket is good once, and whatever happens, a slot has one chain."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import pytest
from django_q.models import OrmQ

from eventservice.db.now import DbNow
from eventservice.runtime import cluster
from eventservice.runtime.cluster import ROLES, mend_chains, run_slice, slot_name, start_chains
from eventservice.runtime.models import Slot

Task = tuple[str, int]
Elsewhere = Callable[..., Future[Any]]
SLOTS = sorted(slot_name(role) for role in ROLES)


@pytest.fixture(autouse=True)
def slices_end_at_once(transactional_db: None, settings: Any) -> None:
    settings.SLICE_SECONDS = 0


def queued() -> list[Task]:
    return sorted(tuple(row.task["args"]) for row in OrmQ.objects.all())


def deliver(tasks: list[Task]) -> None:
    """Hand these to a worker, in place of what is queued."""
    OrmQ.objects.all().delete()
    for task in tasks:
        run_slice(*task)


def test_a_slice_queues_its_successor_first() -> None:
    start_chains()
    assert queued() == [(slot, 1) for slot in SLOTS]
    deliver(queued())
    assert queued() == [(slot, 2) for slot in SLOTS]


def test_a_task_that_is_delivered_twice_has_one_successor() -> None:
    start_chains()
    deliver(queued() * 2)
    assert queued() == [(slot, 2) for slot in SLOTS]


def test_a_task_that_is_delivered_twice_at_once_has_one_successor(elsewhere: Elsewhere) -> None:
    start_chains()
    (first, *_) = queued()
    OrmQ.objects.all().delete()
    for _ in range(10):
        barrier = threading.Barrier(2)

        def run(task: Task, barrier: threading.Barrier = barrier) -> None:
            barrier.wait(5)
            run_slice(*task)

        for delivered in [elsewhere(run, first) for _ in range(2)]:
            delivered.result(20)
        ((slot, ticket),) = queued()
        assert (slot, ticket) == (first[0], first[1] + 1)
        first = (slot, ticket)
        OrmQ.objects.all().delete()


def test_a_second_start_voids_the_chains_of_the_first() -> None:
    start_chains()
    start_chains()
    deliver(queued())
    assert queued() == [(slot, 3) for slot in SLOTS]


def test_two_starts_at_once_leave_one_chain_a_slot(elsewhere: Elsewhere) -> None:
    for start in [elsewhere(start_chains) for _ in range(2)]:
        start.result(20)
    deliver(queued())
    assert [slot for slot, _ in queued()] == SLOTS


def test_a_chain_that_has_died_is_begun_anew() -> None:
    start_chains()
    OrmQ.objects.all().delete()
    Slot.objects.filter(name=SLOTS[0]).update(taken_at=DbNow(-timedelta(minutes=2)))
    mend_chains()
    assert queued() == [(SLOTS[0], 2)]


def test_mending_leaves_living_chains_alone() -> None:
    start_chains()
    before = queued()
    mend_chains()
    assert queued() == before


def test_a_stopping_cluster_leaves_its_chain_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    start_chains()
    stop_asked = threading.Event()
    stop_asked.set()
    with monkeypatch.context() as stopping:
        stopping.setattr(cluster, "_stop_asked", stop_asked)
        deliver(queued())
        assert queued() == [(slot, 1) for slot in SLOTS]
    deliver(queued())
    assert queued() == [(slot, 2) for slot in SLOTS]

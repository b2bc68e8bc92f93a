"""The engine's attempts in flight live in its process: whichever chain the next slice belongs to, it goes on with them."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import Any

import pytest

from eventservice.db.now import DbNow, db_now
from eventservice.runtime import cluster, worker
from eventservice.runtime.cluster import run_slice, start_chains
from eventservice.runtime.cluster_process import this_process
from eventservice.runtime.models import Slot
from eventservice.runtime.slots import cluster_name, slot_name
from eventservice.runtime.worker import Worker
from timers.models import Node

REST_OF_LEASE = timedelta(seconds=1)


class FakeRole:
    def __init__(self) -> None:
        self.steps = 0
        self.stopped_with: float | None = None

    def step(self, max_wait: float) -> None:
        self.steps += 1
        time.sleep(0.01)

    def stop(self, grace_seconds: float) -> None:
        self.stopped_with = grace_seconds

    def count_in_flight(self) -> int:
        return 0

    def count_unrecorded(self) -> int:
        return 0


class FakeEngine(FakeRole):
    pass


class FakeDispatcher(FakeRole):
    pass


@pytest.fixture(autouse=True)
def short_slices_of_fake_roles(
    transactional_db: None, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.SLICE_SECONDS = 0.05
    monkeypatch.setattr(worker, "RENEW_LEASE_SECONDS", 0.0)
    monkeypatch.setattr(worker, "STANDBY_POLL_SECONDS", 0.01)
    roles = {"engine": FakeEngine, "dispatcher": FakeDispatcher}
    monkeypatch.setattr(worker, "ROLES", roles)
    monkeypatch.setattr(cluster, "ROLES", roles)
    start_chains()


def run_slice_in(worker: Worker, chain: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the next slice of that role's chain as if the worker were this process's."""
    monkeypatch.setattr(cluster, "current_worker", lambda: worker)
    run_slice(slot_name(chain), Slot.objects.get(name=slot_name(chain)).ticket)


def count_steps(worker: Worker) -> int:
    assert isinstance(worker.role, FakeRole)
    return worker.role.steps


def test_a_worker_keeps_its_role_when_its_slices_come_from_another_chain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = Worker(), Worker()
    for each in (first, second):
        run_slice_in(each, "engine", monkeypatch)
    roles = first.role, second.role
    assert [type(role) for role in roles] == [FakeEngine, FakeDispatcher]

    before = count_steps(first), count_steps(second)
    run_slice_in(first, "dispatcher", monkeypatch)
    run_slice_in(second, "engine", monkeypatch)
    assert (first.role, second.role) == roles
    assert count_steps(first) > before[0]
    assert count_steps(second) > before[1]


def test_a_third_worker_waits_until_a_role_lease_expires() -> None:
    workers = [Worker() for _ in range(3)]
    for each in workers[:2]:
        each.run_for(0.05)
    # A lease that ended earlier than it was seen to would be that of a clock which was set.
    Slot.objects.filter(name=slot_name("engine")).update(lease_until=DbNow(REST_OF_LEASE))
    workers[2].run_for(0.05)
    assert [type(each.role) for each in workers] == [FakeEngine, FakeDispatcher, type(None)]
    standby = Node.objects.get()  # the fake roles join as none
    assert (standby.role, standby.cluster, standby.process_id) == ("standby", cluster_name(), os.getpid())
    assert standby.is_alive(db_now())

    time.sleep(REST_OF_LEASE.total_seconds())
    workers[2].run_for(0.05)
    assert isinstance(workers[2].role, FakeEngine)
    assert not Node.objects.exists()


def test_a_standby_that_was_declared_dead_joins_again_and_leaves_when_its_worker_ends(settings: Any) -> None:
    settings.NODE_LEASE_SECONDS = 0.0
    workers = [Worker() for _ in range(3)]
    for each in workers:
        each.run_for(0.05)
    former = Node.objects.get().pk
    Node.objects.all().delete()
    workers[2].run_for(0.05)
    assert Node.objects.get().pk != former
    assert workers[2].end()
    assert not Node.objects.exists()


def test_a_worker_that_has_lost_its_lease_stops_its_role(settings: Any) -> None:
    slow, other = Worker(), Worker()
    slow.run_for(0.05)
    role = slow.role
    Slot.objects.filter(name=slot_name("engine")).update(owner_id=other.lease.owner_id)
    slow.run_for(0.05)
    assert isinstance(role, FakeEngine)
    assert role.stopped_with == settings.SHUTDOWN_SECONDS
    assert isinstance(slow.role, FakeDispatcher)


def test_a_worker_stops_its_role_when_the_cluster_stops_between_two_slices(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker()
    run_slice_in(worker, "engine", monkeypatch)
    role = worker.role
    monkeypatch.setattr(this_process, "_own_stop_by", time.monotonic() + settings.SHUTDOWN_SECONDS)
    run_slice_in(worker, "engine", monkeypatch)
    assert isinstance(role, FakeEngine)
    assert role.stopped_with == pytest.approx(settings.SHUTDOWN_SECONDS, abs=5)
    assert Slot.objects.get(name=slot_name("engine")).owner_id is None

"""The engine's attempts in flight live in its process: whichever chain brings the next slice, it goes on with them."""

from __future__ import annotations

import time
from typing import Any

import pytest

from eventservice.db.now import DbNow
from eventservice.runtime import cluster
from eventservice.runtime.cluster import Worker, run_slice, slot_name, start_chains
from eventservice.runtime.models import Slot


class FakeRole:
    def __init__(self) -> None:
        self.steps = 0
        self.stopped_with: float | None = None

    def step(self, longest_nap: float) -> None:
        self.steps += 1
        time.sleep(0.01)

    def stop(self, grace_seconds: float) -> None:
        self.stopped_with = grace_seconds


class Engine(FakeRole):
    pass


class Dispatcher(FakeRole):
    pass


@pytest.fixture(autouse=True)
def short_slices_of_fake_roles(
    transactional_db: None, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.SLICE_SECONDS = 0.05
    monkeypatch.setattr(cluster, "RENEW_SECONDS", 0.0)
    monkeypatch.setattr(cluster, "WAIT_FOR_SEAT_SECONDS", 0.01)
    monkeypatch.setattr(cluster, "ROLES", {"engine": Engine, "dispatcher": Dispatcher})
    start_chains()


def be(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "worker", lambda: worker)


def steps_of(worker: Worker) -> int:
    assert isinstance(worker.role, FakeRole)
    return worker.role.steps


def test_chains_may_change_places(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Worker(), Worker()
    for worker in (first, second):
        be(worker, monkeypatch)
        run_slice(slot_name("engine"), Slot.objects.get(name=slot_name("engine")).ticket)
    roles = first.role, second.role
    assert [type(role) for role in roles] == [Engine, Dispatcher]

    before = steps_of(first), steps_of(second)
    for worker, chain in ((first, "dispatcher"), (second, "engine")):
        be(worker, monkeypatch)
        run_slice(slot_name(chain), Slot.objects.get(name=slot_name(chain)).ticket)
    assert (first.role, second.role) == roles
    assert steps_of(first) > before[0]
    assert steps_of(second) > before[1]


def test_a_third_worker_waits_until_a_seat_is_free() -> None:
    workers = [Worker() for _ in range(3)]
    for worker in workers:
        worker.run_for(0.05)
    assert [type(worker.role) for worker in workers] == [Engine, Dispatcher, type(None)]

    Slot.objects.filter(name=slot_name("engine")).update(lease_until=DbNow(-cluster.SEAT_LEASE))
    workers[2].run_for(0.05)
    assert isinstance(workers[2].role, Engine)


def test_who_has_lost_its_seat_stands_up(monkeypatch: pytest.MonkeyPatch) -> None:
    slow, other = Worker(), Worker()
    slow.run_for(0.05)
    role = slow.role
    Slot.objects.filter(name=slot_name("engine")).update(owner_id=other.id)
    slow.run_for(0.05)
    assert isinstance(role, Engine)
    assert role.stopped_with == 0
    assert isinstance(slow.role, Dispatcher)

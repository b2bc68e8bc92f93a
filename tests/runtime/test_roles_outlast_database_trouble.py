"""A database that is away for a while breaks off a step, and ends neither a slice of the cluster nor a command."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from django.conf import settings
from django.db import DatabaseError, InterfaceError, OperationalError, connection

from eventservice.db import errors
from eventservice.db.errors import tolerate_outage
from eventservice.db.now import DbNow, db_now
from eventservice.management.loops import RoleCommand
from eventservice.runtime import cluster
from eventservice.runtime.cluster import Worker, start_chains
from eventservice.runtime.models import Slot
from tests.database_connections import end_other_connections
from tests.orchestration.support import database_away


class Troubled:
    """Whose first steps raise what it is given; then it does `at_last`."""

    def __init__(self, troubles: list[Exception], at_last: Callable[[], object]) -> None:
        self.troubles = troubles
        self.at_last = at_last
        self.ended = False

    def step(self, longest_nap: float) -> None:
        if self.troubles:
            raise self.troubles.pop(0)
        self.at_last()

    def stop(self, grace_seconds: float) -> None:
        self.ended = True


class Command(RoleCommand):
    def __init__(self, role: Troubled) -> None:
        super().__init__()
        self.role = role

    def build(self) -> Troubled:
        return self.role

    def run_once(self, role: Troubled) -> None:
        role.step(0.0)


def troubles() -> list[Exception]:
    return [OperationalError("database is locked"), InterfaceError("connection already closed")]


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(errors, "PAUSE_SECONDS", 0.0)
    # The command relaxes its process, which here is that of other tests too.
    monkeypatch.setattr("eventservice.db.dialects.sqlite.base._synchronous", "FULL")
    yield
    connection.close()


@pytest.fixture
def signals() -> Iterator[None]:
    """The test run's own are put back."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("signals")
def test_a_command_goes_on_until_it_is_asked_to_stop() -> None:
    role = Troubled(troubles(), at_last=lambda: os.kill(os.getpid(), signal.SIGTERM))
    Command(role).handle(once=False)
    assert (role.troubles, role.ended) == ([], True)


@pytest.mark.django_db(transaction=True)
def test_a_command_for_one_pass_tells_of_the_trouble() -> None:
    role = Troubled(troubles(), at_last=lambda: None)
    with pytest.raises(DatabaseError, match="locked"):
        Command(role).handle(once=True)


@pytest.mark.django_db(transaction=True)
def test_a_slice_goes_on_and_keeps_its_role(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    role = Troubled(troubles(), at_last=lambda: steps.append("a step"))
    monkeypatch.setattr(cluster, "ROLES", {"dispatcher": lambda: role})
    start_chains()
    worker = Worker()
    while not steps:
        worker.run_for(0.05)
    assert worker.role is role
    assert not role.ended


@pytest.mark.django_db(transaction=True)
def test_a_slice_that_cannot_take_its_ticket_plays_its_role_until_it_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would have no successor otherwise."""
    queued: list[tuple[str, int]] = []
    away = troubles()

    def queue(func: object, slot: str, ticket: int) -> None:
        if away:
            raise away.pop()
        queued.append((slot, ticket))

    worker = Worker()
    played: list[float] = []
    start_chains()
    slot = Slot.objects.earliest("name")
    monkeypatch.setattr(cluster, "async_task", queue)
    monkeypatch.setattr(cluster, "worker", lambda: worker)
    monkeypatch.setattr(worker, "run_for", played.append)
    cluster.run_slice(slot.name, slot.ticket)
    assert played == [cluster.AWAY_SECONDS] * 2 + [settings.SLICE_SECONDS]
    assert queued == [(slot.name, slot.ticket + 1)]


@pytest.mark.django_db(transaction=True)
def test_after_an_outage_the_standby_leaves_the_seat_to_who_sat_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its lease has run out, for it could not be renewed."""
    monkeypatch.setattr(cluster, "ROLES", {"engine": lambda: Troubled([], at_last=lambda: None)})
    start_chains()
    active, standby = Worker(), Worker()
    assert (asks(active), asks(standby)) == (True, False)
    with database_away("UPDATE cluster_slots"), pytest.raises(OperationalError):
        asks(standby)
    Slot.objects.update(lease_until=DbNow(-cluster.SEAT_LEASE))
    assert (asks(standby), asks(active)) == (False, True)

    Slot.objects.update(lease_until=DbNow(-cluster.SEAT_LEASE))
    standby._patient_until = 0.0
    assert asks(standby)


def asks(worker: Worker) -> bool:
    worker._renew_at = 0.0
    return worker._seated()


@pytest.mark.django_db(transaction=True)
def test_a_connection_that_was_lost_is_opened_anew(elsewhere: Callable[..., Future[Any]]) -> None:
    if connection.vendor == "sqlite":
        pytest.skip("a file has no connections to lose")
    db_now()
    lost = connection.connection
    elsewhere(end_other_connections).result()
    with tolerate_outage():
        db_now()
    db_now()
    assert connection.connection is not lost


def test_a_mistake_of_ours_is_not_taken_for_the_weather() -> None:
    with pytest.raises(KeyError), tolerate_outage():
        raise KeyError("oops")

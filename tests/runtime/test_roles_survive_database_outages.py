"""A database that is unavailable for a while fails a step, but ends neither a slice of the cluster nor a command."""

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
from eventservice.db.dialects import get_dialect
from eventservice.db.errors import tolerate_outage
from eventservice.db.now import DbNow, db_now
from eventservice.management.loops import RoleCommand
from eventservice.runtime import cluster, worker
from eventservice.runtime.cluster import start_chains
from eventservice.runtime.models import Slot
from eventservice.runtime.slots import ROLE_LEASE
from eventservice.runtime.worker import Worker
from tests.database_connections import end_other_connections
from tests.orchestration.support import database_unavailable


class FailingRole:
    """A role whose first steps raise the given errors. After them, each step calls `then`."""

    def __init__(self, errors: list[Exception], then: Callable[[], object]) -> None:
        self.errors = errors
        self.then = then
        self.stopped = False

    def step(self, max_wait: float) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.then()

    def stop(self, grace_seconds: float) -> None:
        self.stopped = True
        self.grace_seconds = grace_seconds

    def count_in_flight(self) -> int:
        return 0

    def count_unrecorded(self) -> int:
        return 0


class Command(RoleCommand[FailingRole]):
    def __init__(self, role: FailingRole) -> None:
        super().__init__()
        self.role = role

    def build(self) -> FailingRole:
        return self.role

    def run_once(self, role: FailingRole) -> None:
        role.step(0.0)


def list_database_errors() -> list[Exception]:
    return [OperationalError("database is locked"), InterfaceError("connection already closed")]


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(errors, "PAUSE_SECONDS", 0.0)
    # The command relaxes this for its process, which other tests share here.
    monkeypatch.setattr(get_dialect(), "synchronous", "FULL", raising=False)
    yield
    connection.close()


@pytest.fixture
def signals() -> Iterator[None]:
    """Restore the signal handlers of the test run afterwards."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("signals")
def test_a_command_goes_on_until_it_is_terminated() -> None:
    role = FailingRole(list_database_errors(), then=lambda: os.kill(os.getpid(), signal.SIGTERM))
    Command(role).handle(once=False)
    assert (role.errors, role.stopped) == ([], True)


@pytest.mark.django_db(transaction=True)
def test_a_command_for_one_pass_raises_the_error() -> None:
    role = FailingRole(list_database_errors(), then=lambda: None)
    with pytest.raises(DatabaseError, match="locked"):
        Command(role).handle(once=True)


@pytest.mark.django_db(transaction=True)
def test_a_slice_goes_on_and_keeps_its_role(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    role = FailingRole(list_database_errors(), then=lambda: steps.append("a step"))
    set_roles(monkeypatch, {"dispatcher": lambda: role})
    start_chains()
    playing = Worker()
    while not steps:
        playing.run_for(0.05)
    assert playing.role is role
    assert not role.stopped


@pytest.mark.django_db(transaction=True)
def test_a_slice_that_cannot_consume_its_ticket_plays_its_role_until_it_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise it would have no successor."""
    enqueued: list[tuple[str, int]] = []
    errors = list_database_errors()

    def enqueue(func: object, slot: str, ticket: int) -> None:
        if errors:
            raise errors.pop()
        enqueued.append((slot, ticket))

    playing = Worker()
    played: list[float] = []
    start_chains()
    slot = Slot.objects.earliest("name")
    monkeypatch.setattr(cluster, "async_task", enqueue)
    monkeypatch.setattr(cluster, "current_worker", lambda: playing)
    monkeypatch.setattr(playing, "run_for", played.append)
    cluster.run_slice(slot.name, slot.ticket)
    assert played == [cluster.TICKET_RETRY_SECONDS] * 2 + [settings.SLICE_SECONDS]
    assert enqueued == [(slot.name, slot.ticket + 1)]


@pytest.mark.django_db(transaction=True)
def test_after_an_outage_the_standby_leaves_an_expired_lease_to_its_holder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The lease expired only because it could not be renewed."""
    set_roles(monkeypatch, {"engine": lambda: FailingRole([], then=lambda: None)})
    start_chains()
    active, standby = Worker(), Worker()
    assert (holds_role(active), holds_role(standby)) == (True, False)
    with database_unavailable("UPDATE cluster_slots"), pytest.raises(OperationalError):
        holds_role(standby)
    Slot.objects.update(lease_until=DbNow(-ROLE_LEASE))
    assert (holds_role(standby), holds_role(active)) == (False, True)

    Slot.objects.update(lease_until=DbNow(-ROLE_LEASE))
    standby.lease._respect_expired_until = 0.0
    assert holds_role(standby)


@pytest.mark.django_db(transaction=True)
def test_a_worker_that_has_lost_its_role_lets_attempts_finish(monkeypatch: pytest.MonkeyPatch) -> None:
    role = FailingRole([], then=lambda: None)
    set_roles(monkeypatch, {"engine": lambda: role})
    start_chains()
    cut_off, successor = Worker(), Worker()
    assert holds_role(cut_off)
    Slot.objects.update(lease_until=DbNow(-ROLE_LEASE))
    assert holds_role(successor)
    assert not holds_role(cut_off)
    assert (role.stopped, role.grace_seconds) == (True, settings.SHUTDOWN_SECONDS)


def set_roles(monkeypatch: pytest.MonkeyPatch, roles: dict[str, Callable[[], FailingRole]]) -> None:
    monkeypatch.setattr(cluster, "ROLES", roles)
    monkeypatch.setattr(worker, "ROLES", roles)


def holds_role(worker: Worker) -> bool:
    """Have the worker renew its lease, or look for a free role, and return whether it has a role then."""
    worker._renew_at = 0.0
    worker._keep_role()
    return worker.role is not None


@pytest.mark.django_db(transaction=True)
def test_a_lost_connection_is_opened_again(elsewhere: Callable[..., Future[Any]]) -> None:
    if connection.vendor == "sqlite":
        pytest.skip("a file has no connections to lose")
    db_now()
    lost = connection.connection
    elsewhere(end_other_connections).result()
    with tolerate_outage():
        db_now()
    db_now()
    assert connection.connection is not lost


def test_a_bug_is_not_treated_as_an_outage() -> None:
    with pytest.raises(KeyError), tolerate_outage():
        raise KeyError("oops")

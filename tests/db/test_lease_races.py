"""Several owners claim and fence at the same time, each on a connection of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction

from eventservice.db.leases import Fenced, Leases
from eventservice.kernel.ids import new_id
from tests.databases import get_database_name
from timers.models import TimerShard

pytestmark = pytest.mark.django_db(transaction=True)

RUN_OUT = timedelta(seconds=-1)
LONG = timedelta(minutes=1)
Elsewhere = Callable[..., Future[Any]]

CONNECTION_ID = {
    "postgresql": "SELECT pg_backend_pid()",
    "mariadb": "SELECT connection_id()",
    "mysql": "SELECT connection_id()",
    "sqlite": "SELECT 0",
}
IS_WAITING = {
    # Not pg_stat_activity, which does not change within a transaction.
    "postgresql": "SELECT count(*) FROM pg_locks WHERE NOT granted AND pid = %s",
    # Not innodb_trx, which is refreshed ten times a second at most.
    "mysql": (
        "SELECT count(*) FROM performance_schema.data_lock_waits w"
        " JOIN performance_schema.threads t ON t.thread_id = w.requesting_thread_id"
        " WHERE t.processlist_id = %s"
    ),
    "mariadb": (
        "SELECT count(*) FROM information_schema.processlist p, information_schema.global_status s"
        " WHERE p.id = %s AND p.state = 'Updating'"
        " AND s.variable_name = 'INNODB_ROW_LOCK_CURRENT_WAITS' AND s.variable_value > 0"
    ),
    "sqlite": "SELECT 1 + %s",  # it does not tell: there the claim waits for the file, or has not begun
}


def build_leases(length: timedelta) -> Leases:
    return Leases(TimerShard, new_id(), length)


def ask(sql: str, *values: Any) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(sql, list(values))
        return cursor.fetchone()[0]


class Claim:
    """A claim that runs on another connection."""

    def __init__(self, claimer: Leases, elsewhere: Elsewhere) -> None:
        self._began = threading.Event()
        self._id = 0
        self.result: Future[bool] = elsewhere(self._run, claimer)

    def _run(self, claimer: Leases) -> bool:
        self._id = ask(CONNECTION_ID[get_database_name()])
        self._began.set()
        return claimer.claim(1)

    def wait_until_it_waits(self) -> None:
        self._began.wait(timeout=5)
        while not ask(IS_WAITING[get_database_name()], self._id):
            assert not self.result.done(), "the claim did not wait"

    def won(self) -> bool:
        return bool(self.result.result(timeout=5))


@pytest.fixture
def ours() -> Leases:
    """Return an owner whose lease has expired."""
    TimerShard.objects.create(shard_id=1)
    leases = build_leases(RUN_OUT)
    assert leases.claim(1)
    return leases


def test_one_of_many_simultaneous_claims_wins(elsewhere: Elsewhere) -> None:
    TimerShard.objects.create(shard_id=1)
    claimers = [build_leases(LONG) for _ in range(8)]
    start = threading.Barrier(len(claimers))

    def claim(claimer: Leases) -> bool:
        connection.ensure_connection()
        start.wait(timeout=5)
        return claimer.claim(1)

    won = [
        claimer for claimer, claim in [(c, elsewhere(claim, c)) for c in claimers] if claim.result(timeout=10)
    ]

    assert len(won) == 1
    stored = TimerShard.objects.get()
    assert (stored.owner_id, stored.version) == (won[0].owner_id, 1)


def test_a_claim_waits_for_a_fenced_transaction_and_then_wins(ours: Leases, elsewhere: Elsewhere) -> None:
    theirs = build_leases(LONG)
    with transaction.atomic():
        ours.fence([1])
        claim = Claim(theirs, elsewhere)
        claim.wait_until_it_waits()
        ours.fence([1])  # still ours: nothing has landed meanwhile
    assert claim.won()
    assert theirs.held == {1: 2}

    with pytest.raises(Fenced), transaction.atomic():
        ours.fence([1])


def test_a_claim_that_waited_loses_to_a_renewal(ours: Leases, elsewhere: Elsewhere) -> None:
    ours.length = LONG
    with transaction.atomic():
        # Not after a fence: on MariaDB it is a deadlock to write a row under one's share lock while another waits to
        # write it.
        assert ours.renew() == set()
        claim = Claim(build_leases(LONG), elsewhere)
        claim.wait_until_it_waits()
    assert not claim.won()

    with transaction.atomic():
        ours.fence([1])


def test_one_of_two_waiting_claims_wins(ours: Leases, elsewhere: Elsewhere) -> None:
    with transaction.atomic():
        ours.fence([1])
        claims = [Claim(build_leases(LONG), elsewhere) for _ in range(2)]
        for claim in claims:
            claim.wait_until_it_waits()
    assert sorted(claim.won() for claim in claims) == [False, True]


def test_two_writers_of_one_owner_pass_the_fence_together(ours: Leases, elsewhere: Elsewhere) -> None:
    if connection.vendor == "sqlite":
        pytest.skip("SQLite has one writer at a time")

    def write() -> None:
        with transaction.atomic():
            ours.fence([1])

    with transaction.atomic():
        ours.fence([1])
        elsewhere(write).result(timeout=5)

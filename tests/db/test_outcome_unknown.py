"""Whether it is known that the database has written nothing, by what it says; told of each of them in its own way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from threading import Event
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction

from eventservice.db.errors import is_outcome_unknown
from eventservice.tenants.models import Tenant


class Said(Exception):
    """What a driver raises."""

    def __init__(self, text: str, **codes: Any) -> None:
        super().__init__(text)
        self.__dict__.update(codes)


def error(*args: Any, cause: Exception | None = None) -> OperationalError:
    made = OperationalError(*args)
    made.__cause__ = cause
    return made


def of_postgresql(text: str, state: str | None) -> OperationalError:
    return error(text, cause=Said(text, sqlstate=state))


def of_sqlite(text: str, code: int) -> OperationalError:
    return error(text, cause=Said(text, sqlite_errorcode=code))


UNDONE = [
    of_postgresql("canceling statement due to lock timeout", "55P03"),
    of_postgresql("canceling statement due to statement timeout", "57014"),
    of_postgresql("deadlock detected", "40P01"),
    of_postgresql('connection failed: connection to server at "127.0.0.1", port 1 failed: refused', None),
    of_postgresql("connection timeout expired", None),
    error(1205, "Lock wait timeout exceeded; try restarting transaction", cause=Said("", sqlstate="HY000")),
    error(1213, "Deadlock found when trying to get lock; try restarting transaction"),
    error(1969, "Query execution was interrupted (max_statement_time exceeded)"),
    error(2003, "Can't connect to MySQL server"),
    of_sqlite("database is locked", 5),
    of_sqlite("database or disk is full", 13),
    of_sqlite("database is locked", 5 | 2 << 8),
    of_sqlite("unable to open database file", 14),
]
NOBODY_KNOWS = [
    of_postgresql("consuming input failed: server closed the connection unexpectedly", None),
    of_postgresql("terminating connection due to administrator command", "57P01"),
    error(2006, "Server has gone away"),
    error(2013, "Lost connection to MySQL server during query"),
    of_sqlite("disk I/O error", 10),
    error(),
    error("gone"),
]


@pytest.mark.parametrize("said", UNDONE, ids=str)
def test_here_nothing_is_written(said: OperationalError) -> None:
    assert not is_outcome_unknown(said)


@pytest.mark.parametrize("said", NOBODY_KNOWS, ids=str)
def test_here_it_may_be(said: OperationalError) -> None:
    assert is_outcome_unknown(said)


@pytest.mark.django_db(transaction=True)
def test_a_lock_that_another_keeps_writes_nothing(
    tenant: Tenant, elsewhere: Callable[..., Future[Any]]
) -> None:
    held, done = Event(), Event()

    def hold() -> None:
        with transaction.atomic():
            Tenant.objects.filter(pk=tenant.pk).update(max_pending=1)
            held.set()
            done.wait(60)

    holding = elsewhere(hold)
    assert held.wait(30)
    try:
        with hurried(), pytest.raises(OperationalError) as raised, transaction.atomic():
            Tenant.objects.filter(pk=tenant.pk).update(max_pending=2)
    finally:
        done.set()
        holding.result(30)
    assert not is_outcome_unknown(raised.value)


SHORTER = {
    "sqlite": ("PRAGMA busy_timeout = 10", "PRAGMA busy_timeout = 5000"),
    "postgresql": ("SET lock_timeout = 10", "RESET lock_timeout"),
    "mysql": ("SET innodb_lock_wait_timeout = 1", "SET innodb_lock_wait_timeout = DEFAULT"),
}


@contextmanager
def hurried() -> Iterator[None]:
    """A lock is not waited for as long as usual."""
    shorter, usual = SHORTER[connection.vendor]
    with connection.cursor() as cursor:
        cursor.execute(shorter)
    yield
    with connection.cursor() as cursor:
        cursor.execute(usual)

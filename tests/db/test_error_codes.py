"""The errors of each driver are told apart: deadlocks, transactions that wrote nothing, and unknown outcomes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from threading import Barrier, Event
from typing import Any

import pytest
from django.db import DatabaseError, OperationalError, connection, transaction

from eventservice.db.dialects.base import Cause
from eventservice.db.dialects.mysql_family.dialect import NumberedErrors
from eventservice.db.dialects.postgresql.dialect import PostgreSQLErrors
from eventservice.db.dialects.sqlite.dialect import SQLiteErrors
from eventservice.db.errors import TROUBLES, find_trouble, is_deadlock, is_outcome_unknown
from eventservice.tenants.models import Tenant
from tests.databases import get_database_name


class DriverError(Exception):
    """An error of a driver, with its attributes."""

    def __init__(self, text: str, **codes: Any) -> None:
        super().__init__(text)
        self.__dict__.update(codes)


def build_error(*args: Any, cause: Exception | None = None) -> OperationalError:
    raised = OperationalError(*args)
    raised.__cause__ = cause
    return raised


def build_postgresql_error(text: str, state: str | None) -> OperationalError:
    return build_error(text, cause=DriverError(text, sqlstate=state))


def build_sqlite_error(text: str, code: int) -> OperationalError:
    return build_error(text, cause=DriverError(text, sqlite_errorcode=code))


def get_name(part: object) -> str:
    return str(part) if isinstance(part, Exception) else type(part).__name__


POSTGRESQL, MARIADB, MYSQL, SQLITE = PostgreSQLErrors(), NumberedErrors(), NumberedErrors(), SQLiteErrors()
ROLLED_BACK = [
    (POSTGRESQL, build_postgresql_error("canceling statement due to lock timeout", "55P03")),
    (POSTGRESQL, build_postgresql_error("canceling statement due to statement timeout", "57014")),
    (POSTGRESQL, build_postgresql_error("deadlock detected", "40P01")),
    (
        POSTGRESQL,
        build_postgresql_error(
            'connection failed: connection to server at "127.0.0.1" failed: refused', None
        ),
    ),
    (POSTGRESQL, build_postgresql_error("connection timeout expired", None)),
    (MARIADB, build_error(1205, "Lock wait timeout exceeded", cause=DriverError("", sqlstate="HY000"))),
    (MARIADB, build_error(1213, "Deadlock found when trying to get lock; try restarting transaction")),
    (MARIADB, build_error(1969, "Query execution was interrupted (max_statement_time exceeded)")),
    (MARIADB, build_error(2003, "Can't connect to MySQL server")),
    (MYSQL, build_error(1205, "Lock wait timeout exceeded; try restarting transaction")),
    (MYSQL, build_error(1213, "Deadlock found when trying to get lock; try restarting transaction")),
    (MYSQL, build_error(3024, "Query execution was interrupted, maximum statement execution time exceeded")),
    (MYSQL, build_error(2003, "Can't connect to MySQL server")),
    (SQLITE, build_sqlite_error("database is locked", 5)),
    (SQLITE, build_sqlite_error("database or disk is full", 13)),
    (SQLITE, build_sqlite_error("database is locked", 5 | 2 << 8)),
    (SQLITE, build_sqlite_error("unable to open database file", 14)),
]
UNKNOWN = [
    (
        POSTGRESQL,
        build_postgresql_error("consuming input failed: server closed the connection unexpectedly", None),
    ),
    (POSTGRESQL, build_postgresql_error("terminating connection due to administrator command", "57P01")),
    (MARIADB, build_error(2006, "Server has gone away")),
    (MARIADB, build_error(2013, "Lost connection to MySQL server during query")),
    (MYSQL, build_error(2013, "Lost connection to MySQL server during query")),
    (MYSQL, build_error(4031, "The client was disconnected by the server because of inactivity.")),
    (SQLITE, build_sqlite_error("disk I/O error", 10)),
    *(
        (codes, raised)
        for codes in (POSTGRESQL, MARIADB, MYSQL, SQLITE)
        for raised in (build_error(), build_error("gone"))
    ),
]


@pytest.mark.parametrize(("codes", "raised"), ROLLED_BACK, ids=get_name)
def test_nothing_was_written(codes: Any, raised: OperationalError) -> None:
    assert codes.is_rolled_back(raised)


@pytest.mark.parametrize(("codes", "raised"), UNKNOWN, ids=get_name)
def test_something_may_have_been_written(codes: Any, raised: OperationalError) -> None:
    assert not codes.is_rolled_back(raised)
    assert not codes.is_deadlock(raised)


def test_a_deadlock_is_told_from_other_errors() -> None:
    deadlocks = [raised for codes, raised in ROLLED_BACK if codes.is_deadlock(raised)]
    assert [str(raised.args[-1]).split()[0].lower() for raised in deadlocks] == ["deadlock"] * 3


@pytest.mark.django_db(transaction=True)
def test_a_transaction_that_did_not_get_its_lock_wrote_nothing(
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
        with short_lock_timeout(), pytest.raises(OperationalError) as raised, transaction.atomic():
            Tenant.objects.filter(pk=tenant.pk).update(max_pending=2)
    finally:
        done.set()
        holding.result(30)
    assert not is_outcome_unknown(raised.value)
    assert find_trouble(raised.value) == TROUBLES[Cause.LOCKED]


@pytest.mark.skipif(
    connection.vendor == "sqlite", reason="SQLite has one lock for all rows, and so no deadlocks"
)
@pytest.mark.django_db(transaction=True)
def test_a_deadlock_of_two_transactions_is_recognized(
    tenant: Tenant, intruder: Tenant, elsewhere: Callable[..., Future[Any]]
) -> None:
    both_have_one = Barrier(2)

    def change(*tenants: Tenant) -> None:
        with transaction.atomic():
            for changed in tenants:
                Tenant.objects.filter(pk=changed.pk).update(max_pending=1)
                if changed == tenants[0]:
                    both_have_one.wait(30)

    rolled_back = []
    for future in [elsewhere(change, tenant, intruder), elsewhere(change, intruder, tenant)]:
        try:
            future.result(30)
        except OperationalError as error:
            rolled_back.append(error)

    (deadlock,) = rolled_back
    assert is_deadlock(deadlock)
    assert not is_outcome_unknown(deadlock)


@pytest.mark.django_db(transaction=True)
def test_a_missing_table_is_recognized() -> None:
    with pytest.raises(DatabaseError) as raised, connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM no_such_table")
    assert find_trouble(raised.value) == TROUBLES[Cause.MIGRATION_MISSING]
    assert not is_outcome_unknown(raised.value)


LOCK_TIMEOUTS = {
    "sqlite": ("PRAGMA busy_timeout = 10", "PRAGMA busy_timeout = 5000"),
    "postgresql": ("SET lock_timeout = 10", "RESET lock_timeout"),
    "mariadb": ("SET innodb_lock_wait_timeout = 1", "SET innodb_lock_wait_timeout = DEFAULT"),
    "mysql": ("SET innodb_lock_wait_timeout = 1", "SET innodb_lock_wait_timeout = DEFAULT"),
}


@contextmanager
def short_lock_timeout() -> Iterator[None]:
    """Shorten the time that a transaction waits for a lock."""
    short, usual = LOCK_TIMEOUTS[get_database_name()]
    with connection.cursor() as cursor:
        cursor.execute(short)
    yield
    with connection.cursor() as cursor:
        cursor.execute(usual)

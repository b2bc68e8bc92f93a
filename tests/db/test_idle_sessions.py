"""A transaction whose client is silent is ended by the server. A session that is idle outside one can be used again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from django.conf import settings
from django.db import DatabaseError, InterfaceError, connection
from django.db.backends.base.base import BaseDatabaseWrapper

from eventservice.db.configuration import BY_ENGINE
from tests.databases import get_database_name

pytestmark = pytest.mark.django_db(transaction=True)

LIMIT_SECONDS = 1
# The server notices within another second.
LONGER_SECONDS = 2.5
READ_SESSION = {"postgresql": "SELECT pg_backend_pid()", "mysql": "SELECT connection_id()"}


@pytest.fixture
def client() -> Iterator[BaseDatabaseWrapper]:
    """Return a connection of its own, whose transactions may be idle for a second."""
    if connection.vendor == "sqlite":
        pytest.skip("a file has no sessions")
    client = connection.copy()
    waits = replace(settings.DATABASE_WAITS, idle_transaction_seconds=LIMIT_SECONDS)
    BY_ENGINE[client.settings_dict["ENGINE"]].configure(client.settings_dict, waits)  # type: ignore[arg-type]
    yield client
    client.close()


def fetch(client: BaseDatabaseWrapper, sql: str) -> Any:
    with client.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchone()[-1]


def read_session(client: BaseDatabaseWrapper) -> Any:
    return fetch(client, READ_SESSION[client.vendor])


def test_a_session_may_be_idle_outside_a_transaction(client: BaseDatabaseWrapper) -> None:
    session = read_session(client)
    time.sleep(LONGER_SECONDS)
    assert read_session(client) == session


def test_a_session_may_be_idle_after_a_transaction(client: BaseDatabaseWrapper) -> None:
    session = read_session(client)
    client.set_autocommit(False)
    read_session(client)
    client.commit()
    client.set_autocommit(True)
    time.sleep(LONGER_SECONDS)
    assert read_session(client) == session


def test_a_transaction_whose_client_is_silent_is_ended(client: BaseDatabaseWrapper) -> None:
    read_table = "SELECT COUNT(*) FROM nodes"  # for MariaDB, which begins a transaction when a table is read
    client.set_autocommit(False)
    fetch(client, read_table)
    time.sleep(LONGER_SECONDS)
    with pytest.raises((DatabaseError, InterfaceError)):
        fetch(client, read_table)
    # Nor is the connection replaced before the transaction has ended: its first half would be lost.
    with pytest.raises((DatabaseError, InterfaceError)):
        fetch(client, read_table)


# --- sessions that the server closes outside a transaction ------------------------------------------------------------


@pytest.fixture
def short_lived(client: BaseDatabaseWrapper) -> Any:
    """Return a connection to a server that closes each session that is idle for a second."""
    if connection.vendor != "mysql":
        pytest.skip("only MariaDB and MySQL close idle sessions by default")
    client.ensure_connection()
    let_server_close(client)
    return client


def let_server_close(client: Any) -> None:
    client.idle_session_seconds = LIMIT_SECONDS
    with client.cursor() as cursor:
        cursor.execute(f"SET SESSION wait_timeout = {LIMIT_SECONDS}")


def count_pings(client: BaseDatabaseWrapper) -> int:
    return int(fetch(client, "SHOW SESSION STATUS LIKE 'Com_admin_commands'"))


def test_a_session_that_the_server_has_closed_is_replaced(short_lived: Any) -> None:
    session = read_session(short_lived)
    time.sleep(LONGER_SECONDS)
    assert read_session(short_lived) != session
    limits = "SELECT @@innodb_lock_wait_timeout, @@transaction_isolation"
    if get_database_name() == "mariadb":
        limits = limits.replace("@@transaction_isolation", "@@tx_isolation")
    with short_lived.cursor() as cursor:
        cursor.execute(limits)
        assert cursor.fetchone() == (settings.DATABASE_WAITS.lock_seconds, "READ-COMMITTED")


def test_a_session_that_the_server_has_closed_is_replaced_before_a_transaction(short_lived: Any) -> None:
    session = read_session(short_lived)
    time.sleep(LONGER_SECONDS)
    short_lived.set_autocommit(False)
    assert read_session(short_lived) != session
    short_lived.rollback()


def test_a_busy_session_is_not_checked(short_lived: Any) -> None:
    pings = count_pings(short_lived)
    for _ in range(10):
        read_session(short_lived)
    assert count_pings(short_lived) == pings


def test_a_session_that_was_idle_for_half_the_time_is_checked_and_kept(short_lived: Any) -> None:
    short_lived.idle_session_seconds = 2 * LIMIT_SECONDS
    with short_lived.cursor() as cursor:
        cursor.execute("SET SESSION wait_timeout = 60")
    session, pings = read_session(short_lived), count_pings(short_lived)
    time.sleep(1.1 * LIMIT_SECONDS)
    assert count_pings(short_lived) == pings + 1
    assert read_session(short_lived) == session


def test_nothing_is_checked_within_a_transaction(short_lived: Any) -> None:
    short_lived.set_autocommit(False)
    with short_lived.cursor() as cursor:
        cursor.execute("SET SESSION wait_timeout = 60")
        if get_database_name() == "mariadb":
            cursor.execute("SET SESSION idle_transaction_timeout = 60")
    pings = count_pings(short_lived)
    time.sleep(LONGER_SECONDS)
    assert count_pings(short_lived) == pings
    short_lived.rollback()


def test_mysql_limits_the_idle_time_within_transactions_only(client: Any) -> None:
    if get_database_name() != "mysql":
        pytest.skip("the other servers have a limit for transactions")
    usual = fetch(client, "SELECT @@global.wait_timeout")
    assert client.idle_session_seconds == usual == fetch(client, "SELECT @@wait_timeout")
    for _ in range(2):
        client.set_autocommit(False)
        assert fetch(client, "SELECT @@wait_timeout") == LIMIT_SECONDS
        client.commit()
        client.set_autocommit(True)
        assert fetch(client, "SELECT @@wait_timeout") == usual

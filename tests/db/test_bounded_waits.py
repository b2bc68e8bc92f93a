"""A server that does not answer ends a connection, and not the process that waits for it."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.commands import migrate
from django.db import OperationalError, connection
from django.db.backends.base.base import BaseDatabaseWrapper

from eventservice.db.dialects.configuration import (
    KEEPALIVE_COUNT,
    KEEPALIVE_IDLE_SECONDS,
    KEEPALIVE_INTERVAL_SECONDS,
    UNACKNOWLEDGED_SECONDS,
)
from eventservice.db.errors import is_outcome_unknown
from tests.databases import get_database_name
from tests.tcp_proxy import SLOW_CHUNK_BYTES, SLOW_DELAY_SECONDS, TcpProxy, Trouble, proxy

__all__ = ["proxy"]

ANSWER_SECONDS = 0.5
CONNECT_SECONDS = 2  # the least that libpq accepts
LIMITS = {
    "postgresql": {"answer_seconds": ANSWER_SECONDS, "connect_timeout": CONNECT_SECONDS},
    "mysql": {
        "read_timeout": ANSWER_SECONDS,
        "write_timeout": ANSWER_SECONDS,
        "connect_timeout": CONNECT_SECONDS,
    },
}


@pytest.fixture
def client(proxy: TcpProxy) -> Iterator[BaseDatabaseWrapper]:
    """Return an open connection through the proxy, with short waits."""
    client = connection.copy()
    client.settings_dict |= {"HOST": "127.0.0.1", "PORT": str(proxy.port)}
    client.settings_dict["OPTIONS"] |= LIMITS[connection.vendor]
    assert select(client, "1") == 1
    yield client
    client.close()


def select(client: BaseDatabaseWrapper, expression: str) -> Any:
    with client.cursor() as cursor:
        cursor.execute(f"SELECT {expression}")
        return cursor.fetchone()[0]


@pytest.mark.parametrize("trouble", [Trouble.SWALLOW, Trouble.FORGET, Trouble.HOLD])
def test_a_silent_server_ends_the_connection(
    trouble: Trouble, client: BaseDatabaseWrapper, proxy: TcpProxy
) -> None:
    proxy.set_trouble(trouble)
    with pytest.raises(OperationalError) as raised:
        select(client, "2")
    assert is_outcome_unknown(raised.value)
    assert not client.is_usable()

    proxy.set_trouble(Trouble.NONE)
    client.close_if_unusable_or_obsolete()
    # Not the answer to the statement that was given up.
    assert select(client, "3") == 3


@pytest.mark.parametrize("trouble", [Trouble.SWALLOW, Trouble.HOLD, Trouble.REFUSE, Trouble.RESET])
def test_nothing_was_written_by_a_connection_that_was_never_made(
    trouble: Trouble, client: BaseDatabaseWrapper, proxy: TcpProxy
) -> None:
    client.close()
    proxy.set_trouble(trouble)
    with pytest.raises(OperationalError) as raised:
        select(client, "1")
    assert not is_outcome_unknown(raised.value)


def test_an_answer_may_take_as_long_as_it_keeps_coming(client: BaseDatabaseWrapper, proxy: TcpProxy) -> None:
    length = int(4 * ANSWER_SECONDS / SLOW_DELAY_SECONDS) * SLOW_CHUNK_BYTES
    proxy.set_trouble(Trouble.SLOW)
    started_at = time.monotonic()
    assert len(select(client, f"REPEAT('x', {length})")) == length
    assert time.monotonic() - started_at > 2 * ANSWER_SECONDS


def test_an_idle_connection_is_probed(client: BaseDatabaseWrapper) -> None:
    driver: Any = client.connection
    descriptor = driver.pgconn.socket if client.vendor == "postgresql" else driver._sock.fileno()
    with socket.socket(fileno=os.dup(descriptor)) as end:
        assert end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        options = (
            socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT,
        )  # fmt: skip
        assert [end.getsockopt(socket.IPPROTO_TCP, option) for option in options] == [
            KEEPALIVE_IDLE_SECONDS,
            KEEPALIVE_INTERVAL_SECONDS,
            KEEPALIVE_COUNT,
            1000 * UNACKNOWLEDGED_SECONDS,
        ]


# How the server shows its limit for statements, and a day in it.
DAYS = {
    "postgresql": ("SHOW statement_timeout", "1d"),
    "mariadb": ("SELECT @@max_statement_time", "86400.0"),
    "mysql": ("SELECT @@max_execution_time", "86400000"),
}


@pytest.mark.django_db(transaction=True)
def test_migrations_may_take_any_time(monkeypatch: pytest.MonkeyPatch) -> None:
    if connection.vendor == "sqlite":
        pytest.skip("a file has no limits for statements")
    query, a_day = DAYS[get_database_name()]
    limits: list[str] = []

    def read_limit(*args: object, **options: object) -> None:
        with connection.cursor() as cursor:
            cursor.execute(query)
            limits.append(str(cursor.fetchone()[0]))

    monkeypatch.setattr(migrate.Command, "handle", read_limit)
    read_limit()
    call_command("migrate", "--skip-checks")
    read_limit()
    usual, of_migrations, afterwards = limits
    assert of_migrations == a_day
    assert usual == afterwards != of_migrations


@pytest.mark.parametrize("trouble", [Trouble.SWALLOW, Trouble.HOLD, Trouble.RESET])
@pytest.mark.parametrize("is_committing", [False, True], ids=["statement", "commit"])
def test_only_a_commit_that_is_lost_may_have_been_written(
    is_committing: bool, trouble: Trouble, client: BaseDatabaseWrapper, proxy: TcpProxy
) -> None:
    client.set_autocommit(False)
    assert select(client, "1") == 1
    proxy.set_trouble(trouble)
    act = client.commit if is_committing else partial(select, client, "2")
    with pytest.raises(OperationalError) as raised:
        act()
    assert is_outcome_unknown(raised.value) is is_committing

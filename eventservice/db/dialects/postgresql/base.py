"""Django's PostgreSQL backend, with its dialect and connections that do not wait for ever.

libpq limits how long it takes to connect, and how long sent bytes remain unacknowledged. It does not limit how long an
answer takes: the kernel of a suspended server, or a proxy in between, goes on acknowledging. So the connection itself
gives up on a server that is silent for too long.
"""

from __future__ import annotations

import time
from typing import Any, TypeVar

import psycopg
from django.db.backends.postgresql import base
from psycopg.abc import PQGen

from eventservice.db.dialects.base import LostTransaction
from eventservice.db.dialects.host_lookup import is_host_name, look_up_host
from eventservice.db.dialects.postgresql.dialect import PostgreSQLDialect
from eventservice.db.dialects.reconnection import Reconnection

T = TypeVar("T")

# How often psycopg looks up from waiting, by default.
LOOK_SECONDS = 0.1


class ServerSilent(psycopg.OperationalError):
    """Raised when the server has sent nothing for too long. The connection is closed: its answer could still come."""


class PostgreSQLLostBeforeCommit(LostTransaction, psycopg.OperationalError):
    """Raised when the connection was lost within a transaction. The server rolls it back."""


class BoundedPostgreSQLConnection(psycopg.Connection[Any]):
    """A connection that closes itself when the server is silent for `answer_seconds` while an answer is awaited."""

    answer_seconds: float
    _is_committing = False

    def wait(self, gen: PQGen[T], interval: float = LOOK_SECONDS, timeout: float | None = None) -> T:
        try:
            return super().wait(limit_silence(gen, self.answer_seconds), interval, timeout)
        except psycopg.OperationalError as lost:
            if isinstance(lost, ServerSilent):
                self.pgconn.finish()
            if not self.autocommit and not self._is_committing:
                raise PostgreSQLLostBeforeCommit(str(lost)) from lost
            raise

    def commit(self) -> None:
        self._is_committing = True
        try:
            super().commit()
        finally:
            self._is_committing = False


def limit_silence(gen: PQGen[T], max_seconds: float) -> PQGen[T]:
    """Run a generator of psycopg, which is sent whether its socket is ready. Raise ServerSilent if it is not for too long."""
    try:
        wanted = next(gen)
        silent_since = time.monotonic()
        while True:
            ready = yield wanted
            if ready:
                silent_since = time.monotonic()
            elif time.monotonic() - silent_since > max_seconds:
                raise ServerSilent(f"the server did not answer within {max_seconds:g} s")
            wanted = gen.send(ready)
    except StopIteration as end:
        value: T = end.value
        return value


class DatabaseWrapper(base.DatabaseWrapper):
    dialect = PostgreSQLDialect()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.reconnection = Reconnection()

    def get_new_connection(self, conn_params: dict[str, Any]) -> BoundedPostgreSQLConnection:
        params = {**conn_params}
        answer_seconds = params.pop("answer_seconds")
        self.isolation_level = (
            psycopg.IsolationLevel.READ_COMMITTED
        )  # as the server's default, which Django assumes
        with self.reconnection.attempt(psycopg.OperationalError):
            connection = BoundedPostgreSQLConnection.connect(**_look_up_addresses(params))
        connection.answer_seconds = answer_seconds
        return connection


def _look_up_addresses(params: dict[str, Any]) -> dict[str, Any]:
    """Add the addresses of the host. Its name stays, because TLS checks it."""
    host = str(params.get("host", ""))
    if not is_host_name(host) or "hostaddr" in params:
        return params
    try:
        addresses = look_up_host(host, params["connect_timeout"])
    except OSError as error:
        raise psycopg.OperationalError(f"failed to resolve host: {error}") from error
    return {**params, "host": ",".join([host] * len(addresses)), "hostaddr": ",".join(addresses)}

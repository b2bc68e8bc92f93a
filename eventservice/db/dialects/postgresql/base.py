"""Django's PostgreSQL backend, with its dialect and connections that do not wait for ever."""

from __future__ import annotations

from typing import Any, TypeVar

import psycopg
from django.db.backends.postgresql import base
from psycopg.abc import PQGen

from eventservice.db.dialects.base import LostTransaction
from eventservice.db.dialects.host_lookup import is_host_name, look_up_host
from eventservice.db.dialects.postgresql.dialect import PostgreSQLDialect, is_connection_lost
from eventservice.db.dialects.reconnection import Reconnection
from eventservice.db.silence import LOOK_SECONDS, SilenceLimitedConnection

T = TypeVar("T")


class PostgreSQLLostBeforeCommit(LostTransaction, psycopg.OperationalError):
    """Raised when the connection was lost within a transaction. The server rolls it back."""


class BoundedPostgreSQLConnection(SilenceLimitedConnection):
    """A connection that gives up on a silent server, and tells what was lost before its commit from what was not."""

    _is_committing = False

    def wait(self, gen: PQGen[T], interval: float = LOOK_SECONDS, timeout: float | None = None) -> T:
        try:
            return super().wait(gen, interval, timeout)
        except psycopg.OperationalError as error:
            # A deadlock or a lock's timeout is an operational error, too, and keeps its code.
            if is_connection_lost(error) and not self.autocommit and not self._is_committing:
                raise PostgreSQLLostBeforeCommit(str(error)) from error
            raise

    def commit(self) -> None:
        self._is_committing = True
        try:
            super().commit()
        finally:
            self._is_committing = False


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

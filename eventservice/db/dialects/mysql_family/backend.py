"""Django's MySQL backend on PyMySQL, for MariaDB and MySQL servers, with one time per transaction.

Its connections do not wait for ever: connecting includes the handshake, and the kernel probes an idle connection.

CURRENT_TIMESTAMP is stable within a statement only, so the instant is read once when a transaction
begins and `DbNow` renders it from there (eventservice.db.now).
"""

import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import pymysql
from django.core.exceptions import ImproperlyConfigured
from pymysql.constants import CR

pymysql.install_as_MySQLdb()

from django.db.backends.mysql import base, schema  # noqa: E402
from django.db.utils import OperationalError  # noqa: E402

from eventservice.db.dialects.base import Dialect, LostTransaction  # noqa: E402
from eventservice.db.dialects.configuration import (  # noqa: E402
    KEEPALIVE_COUNT,
    KEEPALIVE_IDLE_SECONDS,
    KEEPALIVE_INTERVAL_SECONDS,
    UNACKNOWLEDGED_SECONDS,
)
from eventservice.db.dialects.host_lookup import is_host_name, look_up_host  # noqa: E402
from eventservice.db.dialects.reconnection import Reconnection  # noqa: E402

TCP_OPTIONS = {
    socket.TCP_KEEPIDLE: KEEPALIVE_IDLE_SECONDS,
    socket.TCP_KEEPINTVL: KEEPALIVE_INTERVAL_SECONDS,
    socket.TCP_KEEPCNT: KEEPALIVE_COUNT,
    socket.TCP_USER_TIMEOUT: 1000 * UNACKNOWLEDGED_SECONDS,
}


# The server closed the connection, or it broke, or (MySQL) it was idle for longer than wait_timeout.
LOST = frozenset({CR.CR_SERVER_GONE_ERROR, CR.CR_SERVER_LOST, 4031})

if TYPE_CHECKING:
    Connection = pymysql.connections.Connection[Any]
else:
    Connection = pymysql.connections.Connection  # generic in the stubs only


class BoundedConnection(Connection):
    """PyMySQL's connection, whose `connect_timeout` is for each answer of the handshake, too."""

    connect_timeout: float
    _read_timeout: float | None
    _sock: socket.socket

    def connect(self, sock: socket.socket | None = None) -> None:
        answer_seconds, self._read_timeout = self._read_timeout, self.connect_timeout
        try:
            super().connect(sock or self._connect_to_host())
        except pymysql.OperationalError as error:
            if error.args[0] not in LOST:
                raise
            # Nothing can have been written by a connection that was never made.
            raise pymysql.OperationalError(
                CR.CR_CONN_HOST_ERROR, f"Cannot connect: {error.args[1]}"
            ) from error
        finally:
            self._read_timeout = answer_seconds
        if self._sock.family != socket.AF_UNIX:
            for option, value in TCP_OPTIONS.items():
                self._sock.setsockopt(socket.IPPROTO_TCP, option, value)

    def _connect_to_host(self) -> socket.socket | None:
        """Return a connected socket, or None if the driver need not look up a name."""
        if self.unix_socket or not is_host_name(self.host):
            return None
        try:
            return _connect_to_first(
                look_up_host(self.host, self.connect_timeout), self.port, self.connect_timeout
            )
        except OSError as error:
            message = f"Can't connect to MySQL server on {self.host!r} ({error})"
            raise pymysql.OperationalError(CR.CR_CONN_HOST_ERROR, message) from error

    def query(self, sql: Any, unbuffered: bool = False) -> int:
        try:
            return super().query(sql, unbuffered)
        except pymysql.OperationalError as error:
            # A commit is not sent as a query.
            if self.autocommit_mode or error.args[0] not in LOST:
                raise
            raise LostBeforeCommit(*error.args) from error


class LostBeforeCommit(LostTransaction, pymysql.OperationalError):
    """Raised when the connection was lost within a transaction. The server rolls it back."""


def _connect_to_first(addresses: Sequence[str], port: int, max_seconds: float) -> socket.socket:
    """Connect to the first of the addresses that accepts. Raise the last OSError if none does."""
    *others, last = addresses
    for address in others:
        with suppress(OSError):
            return _connect(address, port, max_seconds)
    return _connect(last, port, max_seconds)


def _connect(address: str, port: int, max_seconds: float) -> socket.socket:
    sock = socket.create_connection((address, port), max_seconds)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return sock


# The user lacks the privilege TRIGGER; it lacks SUPER, and the server has a binary log (MySQL: by default).
TRIGGER_DENIED, TRIGGER_NEEDS_SUPER = 1142, 1419


# A lock was waited for too long; two sessions wait for each other.
LOCKED = frozenset({1205, 1213})
# A statement that changes a table waits for a lock this long. It is tried so often, with pauses in which others go on.
SCHEMA_LOCK_SECONDS, SCHEMA_PAUSE_SECONDS, SCHEMA_TRIES = 1, 0.5, 40


class FamilySchemaEditor(schema.DatabaseSchemaEditor):
    """Django's schema editor for tables that are in use, which says what it takes to create a trigger.

    A statement that changes a table can wait for a transaction that waits for this table. The server does not see this deadlock,
    because the two locks are of different kinds. So the statement gives up before the others do, and is tried again.
    """

    def __enter__(self) -> Self:
        super().__enter__()
        if not self.collect_sql:
            with self.connection.cursor() as cursor:
                cursor.execute("SELECT @@SESSION.innodb_lock_wait_timeout, @@SESSION.lock_wait_timeout")
                self._lock_seconds = cursor.fetchone()
            self._limit_lock_waits(SCHEMA_LOCK_SECONDS, SCHEMA_LOCK_SECONDS)
        return self

    def __exit__(self, *details: Any) -> None:
        try:
            super().__exit__(*details)
        finally:
            if not self.collect_sql and self.connection.is_usable():
                self._limit_lock_waits(*self._lock_seconds)

    def _limit_lock_waits(self, row_seconds: int, table_seconds: int) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(
                "SET SESSION innodb_lock_wait_timeout = %s, lock_wait_timeout = %s",
                [row_seconds, table_seconds],
            )

    def execute(self, sql: Any, params: Any = ()) -> None:
        for _ in range(SCHEMA_TRIES - 1):
            try:
                return self._execute_once(sql, params)
            except OperationalError as error:
                # Within a transaction, what was done before may be rolled back, too.
                if error.args[0] not in LOCKED or self.connection.in_atomic_block:
                    raise
            time.sleep(SCHEMA_PAUSE_SECONDS)
        return self._execute_once(sql, params)

    def _execute_once(self, sql: Any, params: Any) -> None:
        try:
            super().execute(sql, params)
        except OperationalError as error:
            if "TRIGGER" in str(sql) and error.args[0] in (TRIGGER_DENIED, TRIGGER_NEEDS_SUPER):
                raise ImproperlyConfigured(
                    f"{self.connection.display_name} does not let this user create a trigger: {error.args[1]}. "
                    "Grant it TRIGGER on the database, and if the server has a binary log, let an administrator run "
                    "SET GLOBAL log_bin_trust_function_creators = 1 until `manage.py migrate` has ended "
                    "(docs/operations.md)."
                ) from error
            raise


class FamilyWrapper(base.DatabaseWrapper):
    SchemaEditorClass = FamilySchemaEditor
    dialect: Dialect
    mysql_is_mariadb: bool
    transaction_now: datetime | None = None
    # The server closes a session that is idle for so long (wait_timeout).
    idle_session_seconds = 0
    _used_at = 0.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.reconnection = Reconnection()

    def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
        # After the version is known: MariaDB and MySQL refuse each other's variables.
        set_session = conn_params.pop("init_command")
        with self.reconnection.attempt(partial(pymysql.OperationalError, CR.CR_CONN_HOST_ERROR)):
            connection = BoundedConnection(**conn_params)
        with connection.cursor() as cursor:
            cursor.execute("SELECT VERSION(), @@wait_timeout")
            version, self.idle_session_seconds = cursor.fetchone()
            if ("mariadb" in version.lower()) is not self.mysql_is_mariadb:
                connection.close()
                raise ImproperlyConfigured(
                    f"DATABASE_URL says {self.display_name}, but its server is {version}: "
                    f"begin it with {'mysql' if self.mysql_is_mariadb else 'mariadb'}:// instead."
                )
            cursor.execute(f"{set_session}, time_zone = '+00:00'")
        self._used_at = time.monotonic()
        return connection

    def close_if_health_check_failed(self) -> None:
        """Check the connection, as Django does for each request, also when the server may soon have closed it.

        Django calls this before each cursor and each transaction. A connection within a transaction is not replaced.
        """
        used_at, self._used_at = self._used_at, time.monotonic()
        if self.autocommit and self._used_at - used_at > self.idle_session_seconds / 2:
            self.health_check_done = False
        super().close_if_health_check_failed()

    @property
    def data_type_check_constraints(self) -> dict[str, str]:  # type: ignore[override]
        # A boolean is a small integer.
        return {**super().data_type_check_constraints, "BooleanField": "%(qn_column)s IN (0, 1)"}

    def set_autocommit(self, autocommit: bool, *args: Any, **kwargs: Any) -> None:
        super().set_autocommit(autocommit, *args, **kwargs)
        self.transaction_now = None if autocommit else self._read_now()

    def _read_now(self) -> datetime:
        with self.wrap_database_errors, self.connection.cursor() as cursor:
            cursor.execute(self.dialect.now_strategy.prelude)
            instant: datetime = cursor.fetchone()[0]
        return instant

"""Statements of CQL, prepared and bound, each with a limit of time.

No write is repeated here: if it was executed, its conditions would not be met the second time, and a process would take its own
write for another's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from cassandra import (
    AuthenticationFailed,
    ConsistencyLevel,
    DriverException,
    InvalidRequest,
    ProtocolVersion,
    RequestValidationException,
    Unavailable,
)
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import (
    EXEC_PROFILE_DEFAULT,
    Cluster,
    ExecutionProfile,
    NoHostAvailable,
    ResultSet,
    Session,
)
from cassandra.connection import ConnectionException, DefaultEndPoint
from cassandra.policies import (
    DCAwareRoundRobinPolicy,
    ExponentialReconnectionPolicy,
    FallthroughRetryPolicy,
    RetryPolicy,
    TokenAwarePolicy,
)
from cassandra.protocol import ErrorMessage
from cassandra.query import BatchStatement, BatchType, dict_factory

from timers.stores.cassandra.address import CassandraAddress
from timers.stores.cassandra.rows import Row, decode_row
from timers.stores.cassandra.statements import Statement
from timers.stores.encoding import split_batches
from timers.stores.port import OutcomeUnknown, StoreUnavailable, TimerRefused, TimerStoreError

T = TypeVar("T")

# Longer than a server waits for others, by default: 2 s for a write, 5 s for a read.
CONNECT_SECONDS, ANSWER_SECONDS, SCHEMA_SECONDS = 5, 8, 60
# How soon a connection on which nothing comes back is given up, and how soon its server is tried again.
HEARTBEAT_SECONDS, FIRST_DELAY_SECONDS, MAX_DELAY_SECONDS = 5, 0.5, 10.0
MAX_PARALLEL_STATEMENTS = 16
# How many rows the driver fetches at once: few of those that may be large.
ROWS_IN_FETCH, SMALL_ROWS_IN_FETCH = 100, 5000
APPLIED = "[applied]"

# The server has not begun, or refuses. Every other error can follow a write.
NOT_EXECUTED = (
    AuthenticationFailed,
    NoHostAvailable,
    RequestValidationException,
    Unavailable,
)


class _ConnectedCluster(NamedTuple):
    cluster: Cluster
    session: Session
    prepared: dict[str, Any]


class CassandraClient:
    """Executes statements. It connects when it is first used, because the driver's thread does not survive a fork."""

    def __init__(self, name: str, address: CassandraAddress) -> None:
        self._name = name
        self._address = address
        self._lock = threading.Lock()
        self._connection: _ConnectedCluster | None = None

    def read(self, statement: Statement, *, is_serial: bool = False) -> list[Row]:
        """Return the rows. A serial read completes the writes whose outcome is not known yet, or prevents them."""
        (rows,) = self.read_each([statement], is_serial=is_serial)
        return rows

    def read_each(
        self, statements: Sequence[Statement], *, is_serial: bool = False, rows_in_fetch: int = ROWS_IN_FETCH
    ) -> list[list[Row]]:
        """Return the rows of each statement. Several are executed at once."""

        def read(session: Session) -> list[list[Row]]:
            bound = list(map(self._bind, statements))
            for one in bound:
                one.fetch_size = rows_in_fetch
                one.retry_policy = RetryPolicy()
                if is_serial:
                    one.consistency_level = ConsistencyLevel.SERIAL
            return _execute_all(session, bound)

        return self._run(read, StoreUnavailable)

    def write(self, *statements: Statement) -> bool:
        """Execute conditional statements about one shard as one. Return False if a condition is not met: nothing was written."""
        ((first, *_),) = self.write_each([statements])
        return bool(first[APPLIED])

    def write_each(self, batches: Sequence[Sequence[Statement]]) -> list[list[Row]]:
        """Execute batches of conditional statements, several at once, each about one shard.

        Return the answer to each: whether it was applied, in `[applied]`, and otherwise the rows that its conditions name.
        """

        def write(session: Session) -> list[list[Row]]:
            return _execute_all(session, list(map(self._bind_batch, batches)))

        return self._run(write, OutcomeUnknown)

    def read_system(self, text: str, *values: object) -> list[Row]:
        """Read a table of the server itself. The keyspace need not exist."""

        def read() -> list[Row]:
            connection = self._connect()
            return _read_answer(connection.session.execute(_prepare(connection, text), values))

        return self._translate(read, StoreUnavailable)

    def change_schema(self, text: str) -> None:
        self._translate(
            lambda: self._connect().session.execute(text, timeout=SCHEMA_SECONDS), StoreUnavailable
        )

    def close(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.cluster.shutdown()

    # --- connections ------------------------------------------------------------------------------------------

    def _connect(self) -> _ConnectedCluster:
        with self._lock:
            if self._connection is None:
                cluster = self._build_cluster()
                try:
                    self._connection = _ConnectedCluster(cluster, cluster.connect(), {})
                except BaseException:
                    cluster.shutdown()
                    raise
            return self._connection

    def _build_cluster(self) -> Cluster:
        address = self._address
        profile = ExecutionProfile(
            load_balancing_policy=TokenAwarePolicy(DCAwareRoundRobinPolicy(address.data_center or "")),
            # By default, the driver repeats a write on another server if the connection is lost.
            retry_policy=FallthroughRetryPolicy(),
            consistency_level=ConsistencyLevel.LOCAL_QUORUM,
            serial_consistency_level=ConsistencyLevel.SERIAL,
            request_timeout=ANSWER_SECONDS,
            row_factory=dict_factory,
        )
        has_user = address.user is not None
        return Cluster(
            contact_points=[DefaultEndPoint(host, port) for host, port in address.hosts],
            # Of the servers that these know. All servers of a cluster listen on one port.
            port=address.hosts[0][1],
            # The newest one of Cassandra and ScyllaDB. The driver would try others first, each with a connection.
            protocol_version=ProtocolVersion.V4,
            auth_provider=PlainTextAuthProvider(address.user, address.password) if has_user else None,
            ssl_context=address.build_tls_context(),
            execution_profiles={EXEC_PROFILE_DEFAULT: profile},
            connect_timeout=CONNECT_SECONDS,
            # It reads the description of the whole schema.
            control_connection_timeout=ANSWER_SECONDS,
            idle_heartbeat_interval=HEARTBEAT_SECONDS,
            idle_heartbeat_timeout=HEARTBEAT_SECONDS,
            reconnection_policy=ExponentialReconnectionPolicy(FIRST_DELAY_SECONDS, MAX_DELAY_SECONDS),
        )

    # --- statements -------------------------------------------------------------------------------------------

    def _bind(self, statement: Statement) -> Any:
        connection = self._connect()
        try:
            return _prepare(connection, statement.text).bind(dict(statement.values))
        except (UnicodeError, TypeError) as error:
            raise TimerRefused(f"{self._name}: {error}") from error

    def _bind_batch(self, statements: Sequence[Statement]) -> Any:
        if len(statements) == 1:
            return self._bind(statements[0])
        batch = BatchStatement(BatchType.UNLOGGED)  # a conditional batch is atomic anyway
        for statement in statements:
            batch.add(self._bind(statement))
        return batch

    def _run(self, function: Callable[[Session], T], if_lost: type[TimerStoreError]) -> T:
        """Call a function that executes statements about the table."""

        def run() -> T:
            session = self._connect().session
            # A session knows its keyspace before all of its connections do. So others wait for whoever has set it.
            with self._lock:
                if session.keyspace is None:
                    session.set_keyspace(self._address.keyspace)
            return function(session)

        return self._translate(run, if_lost)

    def _translate(self, function: Callable[[], T], if_lost: type[TimerStoreError]) -> T:
        try:
            return function()
        except NOT_EXECUTED as error:
            raise StoreUnavailable(self._describe(error)) from error
        except (DriverException, ConnectionException, ErrorMessage) as error:
            raise if_lost(self._describe(error)) from error
        except OSError as error:  # the files of certificates
            raise StoreUnavailable(self._describe(error)) from error

    def _describe(self, error: Exception) -> str:
        if isinstance(error, NoHostAvailable):
            # A list if there is nothing to say about any of them.
            errors = list(error.errors.values()) if isinstance(error.errors, dict) else []
            if not errors:
                return (
                    f"{self._name}: no server of the data center {self._address.data_center!r} is available"
                )
            return f"{self._name}: no server is available: {_get_first_line(errors[0])}"
        described = f"{self._name}: {_get_first_line(error)}"
        if isinstance(error, InvalidRequest):  # it names something that does not exist
            return f"{described}: run `manage.py timer_store migrate {self._name}`"
        return described


def _prepare(connection: _ConnectedCluster, text: str) -> Any:
    prepared = connection.prepared.get(text)
    if prepared is None:
        prepared = connection.prepared[text] = connection.session.prepare(text)
    return prepared


def _execute_all(session: Session, statements: Sequence[Any]) -> list[list[Row]]:
    """Execute statements, several at once. After an error, wait for those under way and begin no more."""
    answers: list[list[Row]] = []
    for batch in split_batches(statements, MAX_PARALLEL_STATEMENTS):
        futures = [session.execute_async(statement) for statement in batch]
        errors: list[Exception] = []
        for future in futures:
            try:
                answers.append(_read_answer(future.result()))
            except Exception as error:  # noqa: BLE001 - it is raised again
                errors.append(error)
        if errors:
            raise errors[0]
    return answers


def _read_answer(answer: ResultSet) -> list[Row]:
    return [decode_row(row) for row in answer]


def _get_first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__

"""A timer store in a SQL database: PostgreSQL, MySQL, MariaDB, TiDB, and by the same statements Oracle and SQL Server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, RowMapping, create_engine, event, inspect, select, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, SQLAlchemyError
from sqlalchemy.sql.base import Executable

from eventservice.kernel.findings import Finding, check
from eventservice.kernel.ids import new_id
from timers.stores.encoding import (
    build_declaration,
    build_due_position,
    decode_position,
    encode_position,
    parse_due_position,
    read_declaration,
    split_batches,
)
from timers.stores.port import (
    Claim,
    Member,
    NamespaceDeclaration,
    NextAttempt,
    OutcomeUnknown,
    Position,
    QualifiedNamespace,
    RowType,
    ShardBacklog,
    ShardOwnership,
    StoredTimer,
    StoreUnavailable,
    Take,
    TimerConflict,
    TimerKey,
    TimerPage,
    TimerRefused,
    TimerStoreError,
    TimerTooLarge,
    round_up,
)
from timers.stores.rows import read_timer_row
from timers.stores.sql import statements
from timers.stores.sql.databases import ANSWER_SECONDS, DATABASES, POSTGRESQL, SqlDatabase
from timers.stores.sql.sessions import WrongServer, begin_session, connect
from timers.stores.sql.tables import ServerTime, timers
from timers.stores.store_spec import StoreSpec

T = TypeVar("T")

# How many shards one statement reads, and how many it releases.
MAX_SHARDS_IN_STATEMENT, MAX_CLAIMS_IN_STATEMENT = 500, 100
# How many shards of a namespace one page of a list looks through.
MAX_SHARDS_IN_PAGE = 256
MAX_TRIES = 5


def build_store(spec: StoreSpec, cell: str) -> SqlTimerStore:
    """Build the store of a URL, without connecting. Raise ValueError if SQLAlchemy cannot read the URL."""
    from timers.stores.sql.postgresql import PostgreSqlTimerStore

    database = DATABASES[spec.scheme]
    store = PostgreSqlTimerStore if database is POSTGRESQL else SqlTimerStore
    return store(spec, database, cell)


class SqlTimerStore:
    # How many timers one statement names.
    max_rows = 100

    def __init__(self, spec: StoreSpec, database: SqlDatabase, cell: str) -> None:
        self.name = spec.name
        self._database = database
        self._cell = cell
        self._engine = _build_engine(spec, database)

    # --- schema -----------------------------------------------------------------------------------------------

    def migrate(self) -> None:
        self._write(self._create_schema)

    def _create_schema(self, connection: Connection) -> None:
        for statement in self._database.list_schema_statements():
            try:
                connection.execute(text(statement))
            except DBAPIError as error:
                if _get_code(error) not in self._database.exists:
                    raise

    def check(self) -> list[Finding]:
        query = text(self._database.version_query)
        version = self._read(lambda connection: connection.execute(query).scalar_one())
        server = check("timer_store_server", True, f"{self.name}: {version}")
        return [server, self._read(self._check_table)]

    def _check_table(self, connection: Connection) -> Finding:
        problems = list(self._find_differences(connection))
        text = f"{self.name}: {'; '.join(problems)}" if problems else f"{self.name}: complete"
        remedy = f"Run `manage.py timer_store migrate {self.name}`. It creates what is missing and changes nothing else."
        return check("timer_store_table", not problems, text, remedy)

    def _find_differences(self, connection: Connection) -> Sequence[str]:
        found = inspect(connection)
        if not found.has_table(timers.name):
            return ["there is no table timers"]
        differences = []
        columns = {column["name"]: column for column in found.get_columns(timers.name)}
        if missing := [column.name for column in timers.columns if column.name not in columns]:
            differences.append(f"the table timers has no column {', '.join(missing)}")
        key = found.get_pk_constraint(timers.name)["constrained_columns"]
        if key != (expected := [column.name for column in timers.primary_key]):
            differences.append(f"the primary key is ({', '.join(key)}) instead of ({', '.join(expected)})")
        unique = [index["column_names"] for index in found.get_indexes(timers.name) if index["unique"]]
        if ["shard_id", "row_type", "timer_namespace", "timer_id"] not in unique:
            differences.append("the unique index idx_timer_lookup is missing")
        collations = self._read_collations(connection)
        for name in ("timer_namespace", "timer_id"):
            collation = collations.get(name)
            if self._database.collation and collation != self._database.collation:
                differences.append(f"{name} has the collation {collation}, not {self._database.collation}")
        return differences

    def _read_collations(self, connection: Connection) -> dict[str, str]:
        """Return the collations of the columns by their names, where these matter."""
        if not self._database.collation:
            return {}
        query = (
            "SELECT column_name, collation_name FROM information_schema.columns"
            " WHERE table_schema = DATABASE() AND table_name = 'timers'"
        )
        return {row[0]: row[1] for row in connection.execute(text(query))}

    def read_clock(self) -> datetime:
        return self._read(lambda connection: connection.execute(select(ServerTime())).scalar_one())

    def close(self) -> None:
        with suppress(SQLAlchemyError):
            self._engine.dispose()

    # --- members and namespaces -------------------------------------------------------------------------------

    def members(self) -> list[Member]:
        rows = self._select(statements.select_reserved(RowType.MEMBER))
        return [Member(row["timer_uuid"], row["shard_version"], row["shard_metadata"]) for row in rows]

    def beat(self, member: Member) -> bool:
        if member.beats == 1 and self._insert(statements.insert_member(member)):
            return True
        return self._change(statements.update_member(member)) == 1

    def remove_member(self, member: Member) -> bool:
        return self._change(statements.delete_member(member)) == 1

    def namespaces(self) -> list[NamespaceDeclaration]:
        rows = self._select(statements.select_reserved(RowType.NAMESPACE))
        return [
            read_declaration(row["timer_namespace"], row["shard_version"], row["shard_metadata"])
            for row in rows
        ]

    def declare_namespace(
        self, namespace: QualifiedNamespace, num_shards: int, fingerprint: Mapping[str, str]
    ) -> NamespaceDeclaration:
        metadata = build_declaration(num_shards, fingerprint)
        if self._insert(statements.insert_namespace(namespace, metadata)):
            return NamespaceDeclaration(namespace, num_shards, dict(fingerprint), 1)
        return next(declared for declared in self.namespaces() if declared.namespace == namespace)

    def change_fingerprint(self, seen: NamespaceDeclaration, fingerprint: Mapping[str, str]) -> bool:
        metadata = build_declaration(seen.num_shards, fingerprint)
        return self._change(statements.update_namespace(seen, metadata)) == 1

    # --- shards -----------------------------------------------------------------------------------------------

    def shards(self, shards: Sequence[int]) -> list[ShardOwnership]:
        found: dict[int, ShardOwnership] = {}
        for batch in split_batches(shards, MAX_SHARDS_IN_STATEMENT):
            for row in self._select(statements.select_shards(batch)):
                found[row["shard_id"]] = ShardOwnership(
                    row["shard_id"],
                    row["shard_version"],
                    row["shard_owner_id"],
                    row["shard_claimed_at"],
                    row["shard_metadata"],
                )
        return [found.get(shard, ShardOwnership(shard, 0)) for shard in shards]

    def claim(self, seen: ShardOwnership, owner: str, metadata: Mapping[str, str]) -> Claim | None:
        if seen.version == 0:
            won = self._insert(statements.insert_shard(seen.shard, owner, metadata))
        else:
            won = self._change(statements.claim_shard(seen, owner, metadata)) == 1
        return Claim(seen.shard, seen.version + 1) if won else None

    def release(self, claims: Sequence[Claim]) -> None:
        for batch in split_batches(claims, MAX_CLAIMS_IN_STATEMENT):
            self._change(statements.release_shards(batch))

    # --- timers -----------------------------------------------------------------------------------------------

    def put(self, timer: StoredTimer, replaces: StoredTimer | None, now: datetime) -> None:
        self._refuse_what_cannot_be_stored(timer)
        if replaces is None:
            written = self._insert(statements.insert_timer(timer))
        else:
            written = not replaces.is_taken(now) and (
                self._change(statements.replace_timer(timer, replaces)) == 1
            )
        if written:
            return
        stored = self.get(timer.key)
        if stored is None or stored.revision != timer.revision:
            raise TimerConflict(stored)

    def get(self, key: TimerKey) -> StoredTimer | None:
        rows = self._select(statements.select_timer(key))
        return read_timer_row(rows[0]) if rows else None

    def delete(self, timer: StoredTimer, now: datetime) -> bool:
        return not timer.is_taken(now) and self._change(statements.delete_timer(timer)) == 1

    def move(self, timer: StoredTimer, now: datetime, execute_at: datetime) -> StoredTimer | None:
        moved = timer.build_moved(execute_at)
        is_moved = not timer.is_taken(now) and self._change(statements.move_timer(timer, moved)) == 1
        return moved if is_moved else None

    def due(
        self, shard: int, now: datetime, until: datetime, after: Position | datetime | None, limit: int
    ) -> TimerPage:
        position = parse_due_position(after) if after else None
        statement = statements.select_due(shard, now, until, position, limit, self._cell)
        return build_due_page(self._select(statement), limit)

    def first_due(
        self, shards: Sequence[int], now: datetime, until: datetime, limit: int, *, own: bool
    ) -> list[TimerPage]:
        def read(connection: Connection) -> list[TimerPage]:
            pages = []
            cell = self._cell if own else None
            for shard in shards:
                statement = statements.select_due(shard, now, until, None, limit, cell)
                pages.append(build_due_page(connection.execute(statement).mappings(), limit))
            return pages

        return self._read(read)

    def take(self, timers: Sequence[StoredTimer], now: datetime, until: datetime) -> list[StoredTimer]:
        until = round_up(until)
        free = [timer for timer in timers if not timer.is_taken(now)]
        return [
            replace(timer, takes=timer.takes + 1, taken_until=until, taken_by=self._cell)
            for batch in split_batches(free, self.max_rows)
            for timer in self._take_batch(batch, until)
        ]

    def _take_batch(self, timers: Sequence[StoredTimer], until: datetime) -> Sequence[StoredTimer]:
        """Return those of the timers that are taken now, as they were before."""
        take_id = new_id()
        count = self._change(statements.take_timers(timers, until, self._cell, take_id))
        if count == 0 or count == len(timers):
            return timers if count else []
        won = {row["timer_uuid"] for row in self._select(statements.select_won(timers, take_id))}
        return [timer for timer in timers if timer.key.uuid in won]

    def postpone(self, timer: StoredTimer, now: datetime, until: datetime) -> bool:
        statement = statements.postpone_timer(timer, round_up(until))
        return not timer.is_taken(now) and self._change(statement) == 1

    def reschedule(self, attempts: Sequence[NextAttempt]) -> int:
        rounded = [one._replace(execute_at=round_up(one.execute_at)) for one in attempts]
        return sum(map(self._reschedule_batch, split_batches(rounded, self.max_rows)))

    def _reschedule_batch(self, attempts: Sequence[NextAttempt]) -> int:
        return self._change(statements.reschedule_timers(attempts, self._cell))

    def remove(self, takes: Sequence[Take]) -> int:
        return sum(map(self._remove_batch, split_batches(takes, self.max_rows)))

    def _remove_batch(self, takes: Sequence[Take]) -> int:
        return self._change(statements.remove_timers(takes, self._cell))

    def scan(
        self, namespace: QualifiedNamespace, num_shards: int, after: Position | None, limit: int
    ) -> TimerPage:
        first, after_id = decode_position(after) if after else (0, None)
        shards = range(first, min(first + MAX_SHARDS_IN_PAGE, num_shards))
        if not shards:
            return TimerPage([], None)
        rows = self._select(statements.select_namespace_timers(namespace, shards, after_id, limit))
        found = [read_timer_row(row) for row in rows]
        if len(found) == limit:
            return TimerPage(found, encode_position(found[-1].key.shard, found[-1].key.timer_id))
        return TimerPage(found, encode_position(shards.stop, "") if shards.stop < num_shards else None)

    # --- operators --------------------------------------------------------------------------------------------

    def count_timers(self, shards: Sequence[int], now: datetime) -> list[ShardBacklog]:
        found: dict[int, ShardBacklog] = {}
        for batch in split_batches(shards, MAX_SHARDS_IN_STATEMENT):
            for row in self._select(statements.count_timers(batch, now)):
                found[row["shard_id"]] = ShardBacklog(row["shard_id"], row["pending"], int(row["overdue"]))
        return [found.get(shard, ShardBacklog(shard, 0, 0)) for shard in shards]

    def measure_bytes(self) -> int | None:
        if not self._database.size_query:
            return None
        query = text(self._database.size_query)
        size = self._read(lambda connection: connection.execute(query).scalar_one())
        return None if size is None else int(size)

    # --- statements -------------------------------------------------------------------------------------------

    def _refuse_what_cannot_be_stored(self, timer: StoredTimer) -> None:
        if self._database.ignores_trailing_spaces and timer.key.timer_id.endswith(" "):
            raise TimerRefused(
                f"id: {self._database.name} ignores trailing spaces, so the id must not end in one"
            )
        size = _measure_bytes(timer)
        if size > self._database.max_row_bytes:
            raise TimerTooLarge(
                f"payload: the timer has {size:,} bytes, and {self._database.name} accepts {self._database.max_row_bytes:,}"
            )

    def _select(self, statement: Executable) -> list[RowMapping]:
        return self._read(lambda connection: list(connection.execute(statement).mappings()))

    def _insert(self, statement: Executable) -> bool:
        """Insert a row. Return False if its key exists."""
        try:
            self._write(lambda connection: connection.execute(statement))
        except _KeyExists:
            return False
        return True

    def _change(self, statement: Executable) -> int:
        """Execute a statement that writes, and return the number of rows that it has matched."""
        return self._write(lambda connection: int(connection.execute(statement).rowcount))

    def _read(self, function: Callable[[Connection], T]) -> T:
        return self._run(function, StoreUnavailable)

    def _write(self, function: Callable[[Connection], T]) -> T:
        return self._run(function, OutcomeUnknown)

    def _run(self, function: Callable[[Connection], T], if_lost: type[TimerStoreError]) -> T:
        """Call a function with a connection. What the server has rolled back is repeated."""
        try:
            connection = self._engine.connect()
        except SQLAlchemyError as error:
            raise StoreUnavailable(self._describe(error)) from error
        except WrongServer as error:
            raise StoreUnavailable(f"{self.name}: {error}") from error
        with connection:
            for tries_left in reversed(range(MAX_TRIES)):
                try:
                    return function(connection)
                except DBAPIError as error:
                    if _get_code(error) in self._database.key_exists:
                        raise _KeyExists from error
                    if not tries_left or _get_code(error) not in self._database.repeatable:
                        raise self._translate(error, if_lost) from error
        raise AssertionError("the last try returns or raises")

    def _translate(self, error: DBAPIError, if_lost: type[TimerStoreError]) -> TimerStoreError:
        message = self._describe(error)
        if error.connection_invalidated:
            return if_lost(message)
        if _get_code(error) in self._database.too_large:
            return TimerTooLarge(message)
        return TimerRefused(message) if isinstance(error, DataError) else StoreUnavailable(message)

    def _describe(self, error: SQLAlchemyError) -> str:
        """Return the first line of the driver's message: SQLAlchemy's own contains the statement with its values."""
        cause = error.orig if isinstance(error, DBAPIError) else error
        lines = str(cause).strip().splitlines()
        return f"{self.name}: {lines[0] if lines else type(cause).__name__}"


class _KeyExists(Exception):
    """A row with this key exists already."""


def _build_engine(spec: StoreSpec, database: SqlDatabase) -> Engine:
    try:
        url = make_url(spec.url).set(drivername=database.driver)
        engine = create_engine(
            url,
            connect_args=dict(database.connect_args),
            # Each statement is committed by itself.
            isolation_level="AUTOCOMMIT",
            # A connection that the server has closed is replaced before a statement is sent, so that no outcome is unknown.
            pool_pre_ping=True,
            # Several threads share the connections.
            pool_timeout=ANSWER_SECONDS,
            hide_parameters=True,
        )
    except (ArgumentError, TypeError, ValueError):
        raise ValueError("the URL cannot be used by SQLAlchemy") from None
    event.listen(engine, "do_connect", connect)

    event.listen(engine, "connect", partial(begin_session, database))
    return engine


def build_due_page(rows: Iterable[RowMapping], limit: int) -> TimerPage:
    found = [read_timer_row(row) for row in rows]
    return TimerPage(found, build_due_position(found[-1]) if len(found) == limit else None)


def _get_code(error: DBAPIError) -> str | int | None:
    """Return the number of the error, and the SQLSTATE on PostgreSQL, which has no numbers."""
    cause: Any = error.orig
    first = cause.args[0] if cause is not None and cause.args else None
    code = getattr(first, "code", first)  # Oracle's driver has an object
    return code if isinstance(code, int) else getattr(cause, "sqlstate", None)


def _measure_bytes(timer: StoredTimer) -> int:
    return len(timer.callback_url) + len(json.dumps(timer.payload, ensure_ascii=False).encode())

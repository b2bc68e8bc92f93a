"""The interface of a dialect: one facade over a few small objects, which hold all differences between databases."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from django.db import connection

from eventservice.db.dialects.backup import FileBackups
from eventservice.db.dialects.change_watch import ChangeWatch, PollingChangeWatch
from eventservice.db.dialects.configuration import Waits
from eventservice.db.dialects.now_strategy import DbNowStrategy
from eventservice.kernel.findings import Finding

if TYPE_CHECKING:
    from django.core.checks import CheckMessage
    from django.db import DatabaseError, OperationalError, models
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.backends.base.schema import BaseDatabaseSchemaEditor
    from django.db.backends.utils import CursorWrapper

    Model = type[models.Model]


class Locks:
    """The clauses that lock the rows of a SELECT, and what keeps a statement from waiting for a lock."""

    for_update = "FOR UPDATE"
    for_update_skip_locked = "FOR UPDATE SKIP LOCKED"
    for_share = "FOR SHARE"

    @contextmanager
    def without_waiting(self) -> Iterator[None]:
        """Fail at once where a writer locks the whole database. Elsewhere locked rows can be skipped."""
        yield


class BulkWriter:
    """The statements that write many rows at once (eventservice.db.bulk)."""

    # Whether one statement reads all rows from one JSON parameter, instead of being executed once a row.
    reads_rows_from_json = False
    # Whether datetimes are written as the backend adapts them.
    adapts_datetimes = True
    update_hint = ""

    def insert_sql(self, model: Model, columns: Sequence[str]) -> str:
        return _insert_values(model, columns)

    def update_sql(self, model: Model, assignments: str, condition: str) -> str:
        """Return an UPDATE in which a placeholder stands for each `{column}`."""
        table = connection.ops.quote_name(model._meta.db_table)
        return COLUMN.sub("%s", f"UPDATE {table}{self.update_hint} SET {assignments} WHERE {condition}")

    def upsert_sql(
        self,
        model: Model,
        columns: Sequence[str],
        key: Sequence[str],
        overwritten: Sequence[str],
        changes: str,
    ) -> str:
        """Return an INSERT, once a row, that overwrites some columns where the key exists, and applies `changes`."""
        overwrite = ", ".join(f"{column} = excluded.{column}" for column in overwritten)
        conflict = f"ON CONFLICT ({', '.join(key)}) DO UPDATE SET {overwrite}, {changes}"
        return f"{_insert_values(model, columns)} {conflict}"


# In the SQL of eventservice.db.bulk `{column}` stands for a value of that column's type.
COLUMN = re.compile(r"\{(\w+)\}")


def insert_into(model: Model, columns: Sequence[str]) -> str:
    quote = connection.ops.quote_name
    return f"INSERT INTO {quote(model._meta.db_table)} ({', '.join(map(quote, columns))})"


def _insert_values(model: Model, columns: Sequence[str]) -> str:
    return f"{insert_into(model, columns)} VALUES ({', '.join(['%s'] * len(columns))})"


class ImmutabilityTrigger(NamedTuple):
    """The statements for a trigger that refuses to change a column (eventservice.db.constraints.ImmutableField).

    They are templates with `name`, `table`, `column` and `message`. The error is an IntegrityError.
    """

    create: str
    drop: str


class LostTransaction(Exception):
    """A mixin of drivers' errors: the connection was lost before the commit was sent, so nothing was written."""


class Cause(StrEnum):
    """A reason why a database fails (eventservice.db.errors has the texts)."""

    DISK_FULL = "disk_full"
    DISK_ERROR = "disk_error"
    READ_ONLY = "read_only"
    CANNOT_OPEN = "cannot_open"
    CORRUPT = "corrupt"
    LOCKED = "locked"
    TOO_SLOW = "too_slow"
    TOO_MANY_CONNECTIONS = "too_many_connections"
    UNAVAILABLE = "unavailable"
    NO_FILE = "no_file"
    RETIRED = "retired"
    MIGRATION_MISSING = "migration_missing"


class ErrorCodes(ABC):
    """The classification of the driver's errors (eventservice.db.errors)."""

    @abstractmethod
    def find_cause(self, error: Exception) -> Cause | None:
        """Return what is wrong with the database, or None: then it is likely the statement."""

    @abstractmethod
    def is_deadlock(self, error: OperationalError) -> bool:
        """Return whether the transaction was rolled back to resolve a deadlock."""

    @abstractmethod
    def is_rolled_back(self, error: DatabaseError) -> bool:
        """Return whether it is certain that nothing was written."""


class Fragments(ABC):
    """Templates of Django expressions (eventservice.db.sql)."""

    # An expression that no index is chosen for. Planners that weigh costs need no hint.
    unindexed = "%(expressions)s"
    # What follows the name of a table whose rows are named by its primary key. Planners that weigh costs need no hint.
    by_primary_key = ""
    # Whether strings are compared by code point, so that those with a prefix lie next to each other in an index.
    orders_by_code_point = True
    # Whether JSON is stored parsed: members are found without reading the others, and are not in the order of the given text.
    stores_parsed_json = False

    # A table `given` with the column `id`: the UUIDs of a JSON array, which is its parameter.
    uuid_rows: str

    # The size in bytes of a string or JSON value as it is stored, or a little less.
    stored_bytes = "OCTET_LENGTH(%(expressions)s)"

    @abstractmethod
    def timestamp_prefix(self, length: int) -> str:
        """Return the template for the first characters of a moment, as `2026-03-01 12:05` in UTC."""

    @abstractmethod
    def elapsed_steps(self, step_ms: int, max_steps: int) -> tuple[str, str]:
        """Return the template of the number of steps begun between two moments, and the string that joins its arguments.

        The later moment is the first argument.
        """


class Dialect:
    """Everything that differs between the databases. A backend has one, as `connection.dialect`."""

    now_strategy: DbNowStrategy
    locks: Locks
    writer: BulkWriter
    errors: ErrorCodes
    fragments: Fragments
    immutability_trigger: ImmutabilityTrigger
    # Whether a session limits how long it waits for a locked row (DB_LOCK_SECONDS).
    has_lock_timeout = True
    # Backups that the service makes itself. A server's own tools make them otherwise.
    file_backups: FileBackups | None = None
    backup_tools = ""
    health_checks: Sequence[Callable[[], Iterable[Finding]]] = ()

    def watch_changes(self, wake: Callable[[], None], max_interval: float) -> ChangeWatch:
        """Return a watch for the writes of other processes. It may call `wake` from another thread."""
        return PollingChangeWatch(max_interval)

    def relax_durability(self) -> None:
        """Allow a power cut to undo the last commits of this process. Call it before connecting.

        Only for processes that acknowledge nothing to a client (the engine and the dispatcher): they repeat what is
        undone.
        """

    def compute_max_wait(self, waits: Waits) -> int:
        """Return the seconds that one statement may wait for the database, with connecting to it."""
        return waits.connect_seconds + waits.answer_seconds

    def create_database(self, database: BaseDatabaseWrapper) -> None:
        """Create the database if it does not exist and is a file. Those of servers are created by an administrator."""

    def update_column_checks(self, schema_editor: BaseDatabaseSchemaEditor, models: Iterable[Model]) -> None:
        """Give the tables of an older release the CHECKs of their columns that a new table has."""

    def describe_lock_holder(self) -> str:
        """Return sentences that name another session that has locked something for writing, and how to end it.

        They are empty if there is none, or none that this user may see.
        """
        return ""

    def continue_sequence(self, cursor: CursorWrapper, table: str, column: str, last: int) -> None:
        """Number the next new row of a table after `last`."""
        raise NotImplementedError

    def list_tables_without_statistics(self) -> list[str]:
        """Return the tables that have rows and no planner statistics."""
        return []

    def gather_first_statistics(self, tables: Collection[str]) -> list[str]:
        """Analyze those of the tables that have rows and no statistics yet, and return their names."""
        return []

    def gather_statistics(self, cursor: CursorWrapper) -> None:
        """Let the planner know the rows of a database that was just filled, where it would not soon by itself."""

    def count_free_bytes(self) -> int | None:
        """Return the free space of the database's disk, or None if it belongs to a server."""
        return None

    def run_system_checks(self) -> list[CheckMessage]:
        """Return problems of the driver or its library. It is called without a connection."""
        return []

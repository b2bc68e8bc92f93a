"""The SQLite dialect: one writer at a time, moments are texts, and the log shows that something was written."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.core.checks import CheckMessage, Warning
from django.db import DatabaseError, OperationalError, connection

from eventservice.db.dialects.base import (
    BulkWriter,
    Cause,
    Dialect,
    ErrorCodes,
    Fragments,
    ImmutabilityTrigger,
    Locks,
)
from eventservice.db.dialects.change_watch import ChangeWatch
from eventservice.db.dialects.configuration import Waits
from eventservice.db.dialects.now_strategy import DbNowStrategy, Sql, TimestampStorage
from eventservice.db.dialects.sqlite import health
from eventservice.db.dialects.sqlite.backup import SQLiteBackups
from eventservice.db.dialects.sqlite.change_watch import SQLiteChangeWatch
from eventservice.db.dialects.sqlite.library import BUSY_SECONDS, FIXED

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from eventservice.db.dialects.base import Model

# Less is a full disk, whatever the error says.
MIN_FREE_BYTES = 64 * 1024
# The backend writes each transaction's time into this table (base.py).
NOW_TABLE = "temp.stable_now"
# Milliseconds are what SQLite's clock gives. Six digits keep stored texts of one width, so that they sort.
TIME_FORMAT = "%Y-%m-%d %H:%M:%f000"
# A Julian day has room for 0.05 ms, so it has to be rounded.
CLOCK_EPOCH_MS = "CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER)"


class SQLiteNowStrategy(DbNowStrategy):
    """The temporary table inside a transaction, and the clock of the statement outside one.

    The clock and the offsets have whole milliseconds.
    """

    setup = (
        f"CREATE TEMP TABLE IF NOT EXISTS {NOW_TABLE.removeprefix('temp.')}"
        " (ts_epoch_ms INTEGER NOT NULL, ts_text TEXT NOT NULL)"
    )
    # One statement replaces the only row, instead of a DELETE and an INSERT. It reads the clock once.
    prelude = (
        f"INSERT OR REPLACE INTO {NOW_TABLE} (rowid, ts_epoch_ms, ts_text)"
        f" VALUES (1, {CLOCK_EPOCH_MS}, strftime('{TIME_FORMAT}', 'now'))"
    )

    def render_now(self, connection: Any, offset: timedelta, storage: TimestampStorage) -> Sql:
        if storage is TimestampStorage.EPOCH_MS:
            now = f"(SELECT ts_epoch_ms FROM {NOW_TABLE})" if connection.in_atomic_block else CLOCK_EPOCH_MS
            moved_by = round(offset / timedelta(milliseconds=1))
            return f"({now} + {moved_by})" if moved_by else now, []
        base = f"(SELECT ts_text FROM {NOW_TABLE})" if connection.in_atomic_block else "'now'"
        if offset or base == "'now'":
            modifier = f", '{offset.total_seconds():+.3f} seconds'" if offset else ""
            return f"strftime('{TIME_FORMAT.replace('%', '%%')}', {base}{modifier})", []
        return base, []


class SQLiteLocks(Locks):
    """No row locks: every transaction is IMMEDIATE, so there is only one writer at a time."""

    for_update = for_update_skip_locked = for_share = ""

    @contextmanager
    def without_waiting(self) -> Iterator[None]:
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA busy_timeout")
            (usual,) = cursor.fetchone()
            cursor.execute("PRAGMA busy_timeout = 0")
            try:
                yield
            finally:
                cursor.execute(f"PRAGMA busy_timeout = {usual}")


class SQLiteErrors(ErrorCodes):
    """The primary result code is the last byte; the rest of it says how."""

    CAUSES = {
        5: Cause.LOCKED,
        6: Cause.LOCKED,
        8: Cause.READ_ONLY,
        10: Cause.DISK_ERROR,
        11: Cause.CORRUPT,
        13: Cause.DISK_FULL,
        14: Cause.CANNOT_OPEN,
        26: Cause.CORRUPT,  # not a database
    }
    # Busy, locked, read-only, full, cannot open, not a database.
    ROLLED_BACK = frozenset({5, 6, 8, 13, 14, 26})
    # Errors of the shared memory, which a transaction needs before it reads or writes anything: it cannot be opened,
    # enlarged, locked or mapped.
    NOT_BEGUN = frozenset({4618, 4874, 5130, 5386})

    def find_cause(self, error: Exception) -> Cause | None:
        if isinstance(error.__cause__, FileNotFoundError):
            return Cause.NO_FILE
        if isinstance(error.__cause__, OSError):  # the file cannot be looked at, or its folder not created
            full = error.__cause__.errno == errno.ENOSPC
            return Cause.DISK_FULL if full else Cause.CANNOT_OPEN
        if hasattr(error.__cause__, "is_retired"):
            return Cause.RETIRED
        if _is_migration_missing(error):
            return Cause.MIGRATION_MISSING
        cause = self.CAUSES.get(_get_code(error) & 0xFF)
        path = Path(connection.settings_dict["NAME"])
        if cause is Cause.DISK_ERROR and shutil.disk_usage(path.absolute().parent).free < MIN_FREE_BYTES:
            return Cause.DISK_FULL
        if cause is Cause.CANNOT_OPEN and path.is_file() and not os.access(path, os.W_OK):
            return Cause.READ_ONLY
        return cause

    def is_deadlock(self, error: OperationalError) -> bool:
        return False

    def is_rolled_back(self, error: DatabaseError) -> bool:
        if isinstance(error.__cause__, OSError) or hasattr(error.__cause__, "while_connecting"):
            return True
        if _is_migration_missing(error):
            return True
        code = _get_code(error)
        return code in self.NOT_BEGUN or code & 0xFF in self.ROLLED_BACK


def _get_code(error: Exception) -> int:
    return int(getattr(error.__cause__, "sqlite_errorcode", 0))


def _is_migration_missing(error: Exception) -> bool:
    """Return whether a statement names a table or column that does not exist. The code is that of every wrong statement."""
    text = str(error)
    return text.startswith(("no such table: ", "no such column: ")) or " has no column named " in text


class SQLiteFragments(Fragments):
    """Moments are texts. Django's own functions for dates are Python's here, and slow."""

    uuid_rows = "(SELECT value AS id FROM json_each(%s)) AS given"
    unindexed = "+%(expressions)s"  # SQLite documents the unary plus for this
    stored_bytes = "LENGTH(CAST(%(expressions)s AS BLOB))"  # OCTET_LENGTH came with SQLite 3.43

    def timestamp_prefix(self, length: int) -> str:
        return f"SUBSTR(%(expressions)s, 1, {length})"

    def elapsed_steps(self, step_ms: int, max_steps: int) -> tuple[str, str]:
        # Rounded to milliseconds, the precision of a Julian day.
        days = "JULIANDAY(%(expressions)s)"
        steps = f"(CAST(ROUND(({days}) * 86400000) AS INTEGER) + {step_ms - 1}) / {step_ms}"
        return f"MIN({max_steps}, MAX(0, {steps}))", ") - JULIANDAY("


# Dropping a table drops its triggers, and to alter a table Django creates it again, with those of its constraints.
IMMUTABILITY_TRIGGER = ImmutabilityTrigger(
    create=(
        "CREATE TRIGGER %(name)s BEFORE UPDATE ON %(table)s FOR EACH ROW"
        " WHEN NEW.%(column)s IS NOT OLD.%(column)s BEGIN SELECT RAISE(ABORT, '%(message)s'); END"
    ),
    drop="DROP TRIGGER %(name)s",
)


class SQLiteDialect(Dialect):
    now_strategy = SQLiteNowStrategy()
    locks = SQLiteLocks()
    writer = BulkWriter()
    errors = SQLiteErrors()
    fragments = SQLiteFragments()
    immutability_trigger = IMMUTABILITY_TRIGGER
    has_lock_timeout = False
    file_backups = SQLiteBackups()
    health_checks = (
        health.check_sqlite_library,
        health.check_sqlite_pragmas,
        health.check_database_files,
        health.check_disk_space,
    )

    # FULL where submissions are acknowledged. A power cut can only make the engine repeat its work.
    synchronous = "FULL"

    def describe_lock_holder(self) -> str:
        return health.describe_lock_holder()

    def count_free_bytes(self) -> int:
        return health.count_free_bytes()

    def watch_changes(self, wake: Callable[[], None], max_interval: float) -> ChangeWatch:
        return SQLiteChangeWatch(wake, Path(connection.settings_dict["NAME"]).parent)

    def create_database(self, database: BaseDatabaseWrapper) -> None:
        """Create the file and its folder, so that only this user can read them.

        SQLite gives the WAL and its index the mode of the database.
        """
        name = database.settings_dict["NAME"]
        if database.creation.is_in_memory_db(name):  # type: ignore[attr-defined]
            return
        file = Path(name).resolve()
        try:
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise OperationalError(f"unable to create {file.parent}: {error.strerror}") from error
        with suppress(OSError):  # it exists, or the connection says what is wrong
            os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))

    def update_column_checks(self, schema_editor: Any, models: Iterable[Model]) -> None:
        """Create the tables again that lack a CHECK, as Django does to alter a table."""
        for model in models:
            checks = [field.db_check(schema_editor.connection) for field in model._meta.local_concrete_fields]
            definition = _read_definition(schema_editor.connection, model._meta.db_table)
            if any(check and check not in definition for check in checks):
                schema_editor._remake_table(model)

    def relax_durability(self) -> None:
        self.synchronous = "NORMAL"

    def compute_max_wait(self, waits: Waits) -> int:
        return BUSY_SECONDS

    def run_system_checks(self) -> list[CheckMessage]:
        library: Any = connection.Database  # type: ignore[attr-defined]
        if library.sqlite_version_info >= FIXED:
            return []
        return [
            Warning(
                f"SQLite {library.sqlite_version} can corrupt a database in WAL mode.",
                hint="Install pysqlite3 (pinned in requirements.lock), or a Python with SQLite 3.51.3 or newer.",
                id="eventservice.W001",
            )
        ]


def _read_definition(on: Any, table: str) -> str:
    """Return the CREATE TABLE statement of a table, or an empty string if it does not exist."""
    with on.cursor() as cursor:
        cursor.execute("SELECT sql FROM sqlite_master WHERE type = 'table' AND name = %s", [table])
        row = cursor.fetchone()
    return str(row[0]) if row else ""

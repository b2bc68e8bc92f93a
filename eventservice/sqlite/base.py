"""Django's SQLite backend made strict: STRICT tables, IMMEDIATE transactions, one time per transaction.

- Every table, of every app, is STRICT: a wrong type is an error and not a silent conversion.
- Transactions begin IMMEDIATE: a writer waits its turn at the start, where waiting is safe, and not in the
  middle, where SQLite can only answer "database is locked".
- Each transaction seeds the connection's `stable_now` table, which `DbNow` reads (eventservice.kernel.now).
- `synchronous` follows the role of the process: FULL where submissions are acknowledged, NORMAL in the engine,
  whose work a power cut can only make it repeat.
"""

import time
from pathlib import Path
from typing import Any

from eventservice.kernel.now import SQLITE_FORMAT, SQLITE_NOW_TABLE
from eventservice.sqlite.library import prefer_fixed_library

prefer_fixed_library()

from django.db.backends.sqlite3 import base, operations, schema  # noqa: E402
from django.db.utils import OperationalError  # noqa: E402

TYPES = {
    "AutoField": "integer",
    "BigAutoField": "integer",
    "SmallAutoField": "integer",
    "BigIntegerField": "integer",
    "BooleanField": "integer",
    "DurationField": "integer",
    "IntegerField": "integer",
    "PositiveBigIntegerField": "integer",
    "PositiveIntegerField": "integer",
    "PositiveSmallIntegerField": "integer",
    "SmallIntegerField": "integer",
    "FloatField": "real",
    "BinaryField": "blob",
}

# How long a writer waits for the others, and how often it asks while it does.
BUSY_SECONDS = 5.0
ASK_AGAIN_SECONDS = 0.0002
PRAGMA_BUSY_TIMEOUT = f"PRAGMA busy_timeout = {BUSY_SECONDS * 1000:.0f}"

PRAGMAS = (
    "PRAGMA journal_mode = WAL",
    PRAGMA_BUSY_TIMEOUT,
    "PRAGMA temp_store = MEMORY",
    "PRAGMA cache_size = -16384",
    f"CREATE TEMP TABLE IF NOT EXISTS {SQLITE_NOW_TABLE.removeprefix('temp.')} (id integer PRIMARY KEY, ts text)",
)

SEED_NOW = (
    f"INSERT OR REPLACE INTO {SQLITE_NOW_TABLE} (id, ts) VALUES (1, strftime('{SQLITE_FORMAT}', 'now'))"
)

_synchronous = "FULL"


def relax_synchronous() -> None:
    """For processes that acknowledge nothing to a client (the engine and the dispatcher), before they connect."""
    global _synchronous
    _synchronous = "NORMAL"


class StrictSchemaEditor(schema.DatabaseSchemaEditor):
    sql_create_table = schema.DatabaseSchemaEditor.sql_create_table + " STRICT"


class StrictOperations(operations.DatabaseOperations):
    def adapt_datetimefield_value(self, value: Any) -> Any:
        adapted = super().adapt_datetimefield_value(value)
        # Python leaves out a zero fraction; texts must be of one width to compare as the instants do.
        if isinstance(adapted, str) and "." not in adapted:
            adapted += ".000000"
        return adapted


class DatabaseWrapper(base.DatabaseWrapper):
    data_types = {name: TYPES.get(name, "text") for name in base.DatabaseWrapper.data_types}
    SchemaEditorClass = StrictSchemaEditor
    ops_class = StrictOperations

    def get_connection_params(self) -> dict[str, Any]:
        params = super().get_connection_params()
        self.transaction_mode = "IMMEDIATE"
        return params

    def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
        if not self.is_in_memory_db():
            Path(conn_params["database"]).parent.mkdir(parents=True, exist_ok=True)
        connection = super().get_new_connection(conn_params)
        for pragma in (*PRAGMAS, f"PRAGMA synchronous = {_synchronous}"):
            connection.execute(pragma)
        return connection

    def _start_transaction_under_autocommit(self) -> None:
        self._begin()
        self.connection.execute(SEED_NOW)

    def _begin(self) -> None:
        """Wait for the write lock by asking often.

        SQLite's own waiting sleeps ever longer, up to 0.1 s, while a submission holds the lock for half a
        millisecond: two web workers together would store hardly more than one.
        """
        deadline = time.monotonic() + BUSY_SECONDS
        self.connection.execute("PRAGMA busy_timeout = 0")
        try:
            while True:
                try:
                    return super()._start_transaction_under_autocommit()  # type: ignore[misc, no-any-return]
                except OperationalError as busy:
                    if "locked" not in str(busy) or time.monotonic() > deadline:
                        raise
                    time.sleep(ASK_AGAIN_SECONDS)
        finally:
            self.connection.execute(PRAGMA_BUSY_TIMEOUT)

"""Django's SQLite backend made strict: STRICT tables, IMMEDIATE transactions, one time per transaction.

- Every table, of every app, is STRICT: a wrong type is an error and not a silent conversion.
- Transactions are IMMEDIATE: a writer waits at the start, where waiting is safe. In the middle of a transaction SQLite
  could only answer "database is locked".
- Each transaction seeds the connection's `stable_now` table, which `DbNow` reads (eventservice.db.now).
- A connection creates no file: only `manage.py migrate` does (SQLiteDialect.create_database).
- `synchronous` follows the role of the process (SQLiteDialect.relax_durability).
"""

from functools import lru_cache
from pathlib import Path
from typing import Any

from eventservice.db.dialects.sqlite.library import BUSY_SECONDS, prefer_fixed_library

prefer_fixed_library()

from django.db.backends.sqlite3 import base, operations, schema  # noqa: E402
from django.db.utils import DEFAULT_DB_ALIAS, OperationalError  # noqa: E402

from eventservice.db.dialects.sqlite.backup import is_retired  # noqa: E402
from eventservice.db.dialects.sqlite.dialect import SQLiteDialect  # noqa: E402
from eventservice.kernel.ids import parse_hex  # noqa: E402

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

# What the types of other databases guarantee. A CHECK is evaluated only when its column is written.
COLUMN_CHECKS = {
    "BooleanField": "%(qn_column)s IN (0, 1)",
    "CharField": "length(%(qn_column)s) <= %(max_length)s",
    "DateTimeField": (
        "%(qn_column)s IS NULL OR (length(%(qn_column)s) = 26 AND julianday(%(qn_column)s) IS NOT NULL)"
    ),
    "UUIDField": "length(%(qn_column)s) = 32 AND %(qn_column)s NOT GLOB '*[^0-9a-f]*'",
}

PRAGMAS = (
    "PRAGMA journal_mode = WAL",
    f"PRAGMA busy_timeout = {1000 * BUSY_SECONDS}",
    "PRAGMA temp_store = MEMORY",
    "PRAGMA cache_size = -16384",
    # 16 MB. The same pages are written again and again: copied seldom, they are copied less often in all.
    "PRAGMA wal_autocheckpoint = 4000",
)


def _require_file(file: Path) -> None:
    """Raise OperationalError if the file does not exist. SQLite would create it, and an empty database hides that the path
    is wrong."""
    try:
        file.stat()
    except OSError as error:
        raise OperationalError(error.strerror) from error


class StrictSchemaEditor(schema.DatabaseSchemaEditor):
    sql_create_table = schema.DatabaseSchemaEditor.sql_create_table + " STRICT"


@lru_cache(256)
def _convert_placeholders(query: str) -> str:
    return base.FORMAT_QMARK_REGEX.sub("?", query).replace("%%", "%")


class CachingCursor(base.SQLiteCursorWrapper):
    """Converts the placeholders of a statement once, and not at each execution: 15 µs for a row of 22 columns."""

    def convert_query(self, query: str, *, param_names: list[str] | None = None) -> str:
        if param_names is None:
            return _convert_placeholders(query)
        return super().convert_query(query, param_names=param_names)


class StrictOperations(operations.DatabaseOperations):
    def adapt_datetimefield_value(self, value: Any) -> Any:
        adapted = super().adapt_datetimefield_value(value)
        # Python omits a zero fraction, but texts must have one width to sort as the moments do.
        if isinstance(adapted, str) and "." not in adapted:
            adapted += ".000000"
        return adapted

    def convert_uuidfield_value(self, value: Any, expression: object, connection: object) -> Any:
        return None if value is None else parse_hex(value)


class DatabaseWrapper(base.DatabaseWrapper):
    dialect = SQLiteDialect()
    data_types = {name: TYPES.get(name, "text") for name in base.DatabaseWrapper.data_types}
    data_type_check_constraints = base.DatabaseWrapper.data_type_check_constraints | COLUMN_CHECKS
    SchemaEditorClass = StrictSchemaEditor
    ops_class = StrictOperations

    def get_connection_params(self) -> dict[str, Any]:
        params = super().get_connection_params()
        self.transaction_mode = "IMMEDIATE"
        return params

    def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
        if not self.is_in_memory_db():
            _require_file(Path(conn_params["database"]))
        try:
            connection = super().get_new_connection(conn_params)
            self._prepare(connection)
        except self.Database.Error as error:
            error.while_connecting = True  # so nothing was written (SQLiteErrors.is_rolled_back)
            raise
        return connection

    def create_cursor(self, name: str | None = None) -> Any:
        return self.connection.cursor(factory=CachingCursor)

    def _prepare(self, connection: Any) -> None:
        # Only the service's own database: commands read a retired one under another alias.
        if self.alias == DEFAULT_DB_ALIAS and is_retired(connection):
            error = self.Database.OperationalError("this database is retired")
            error.is_retired = True
            raise error
        for statement in (
            *PRAGMAS,
            f"PRAGMA synchronous = {self.dialect.synchronous}",
            self.dialect.now_strategy.setup,
        ):
            connection.execute(statement)

    def _start_transaction_under_autocommit(self) -> None:
        super()._start_transaction_under_autocommit()  # type: ignore[misc]
        self.connection.execute(self.dialect.now_strategy.prelude)

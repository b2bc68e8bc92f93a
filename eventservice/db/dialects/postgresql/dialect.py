"""The PostgreSQL dialect: a batch is one statement, and a new table needs its first statistics."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.db import DatabaseError, InterfaceError, OperationalError, connection

from eventservice.db.dialects.base import (
    COLUMN,
    BulkWriter,
    Cause,
    Dialect,
    ErrorCodes,
    Fragments,
    ImmutabilityTrigger,
    Locks,
    LostTransaction,
    insert_into,
)
from eventservice.db.dialects.now_strategy import DbNowStrategy, Sql, TimestampStorage, render_moved
from eventservice.db.dialects.postgresql import health
from eventservice.db.dialects.postgresql.statistics import list_tables_without_statistics

if TYPE_CHECKING:
    from eventservice.db.dialects.base import Model


class PostgreSQLNowStrategy(DbNowStrategy):
    """CURRENT_TIMESTAMP is the transaction's time."""

    timestamp_parameter = "%s::timestamptz"
    epoch_ms_parameter = "%s::bigint"

    def render_now(self, connection: object, offset: timedelta, storage: TimestampStorage) -> Sql:
        now, values = render_moved("CURRENT_TIMESTAMP", "{now} + %s * INTERVAL '1 microsecond'", offset)
        if storage is TimestampStorage.EPOCH_MS:
            return f"FLOOR(EXTRACT(EPOCH FROM {now}) * 1000)::bigint", values
        return now, values


class PostgreSQLWriter(BulkWriter):
    """A batch is one statement that reads its rows from one JSON parameter.

    A statement a row costs a round trip and a plan each, and before the tables have statistics that plan may walk all
    of a tenant's rows to find the one.
    """

    reads_rows_from_json = True
    adapts_datetimes = False

    def insert_sql(self, model: Model, columns: Sequence[str]) -> str:
        values = ", ".join(_value_names(len(columns)))
        return f"{insert_into(model, columns)} SELECT {values} FROM {_recordset(model, columns)}"

    def update_sql(self, model: Model, assignments: str, condition: str) -> str:
        table = connection.ops.quote_name(model._meta.db_table)
        columns = COLUMN.findall(f"{assignments} {condition}")
        sql = f"UPDATE {table} SET {assignments} FROM {_recordset(model, columns)} WHERE {condition}"
        names = iter(_value_names(len(columns)))
        return COLUMN.sub(lambda column: next(names), sql)


def _value_names(count: int) -> list[str]:
    """Return what the values of a row are called in JSON (eventservice.db.bulk)."""
    return [f"v{number}" for number in range(count)]


def _recordset(model: Model, columns: Sequence[str]) -> str:
    types = {field.column: field.rel_db_type(connection) for field in model._meta.local_concrete_fields}
    named = zip(_value_names(len(columns)), columns, strict=True)
    typed = ", ".join(f"{name} {types[column]}" for name, column in named)
    return f"json_to_recordset(%s::json) AS given({typed})"


class PostgreSQLErrors(ErrorCodes):
    """The SQLSTATE codes that psycopg reports."""

    DEADLOCK = "40P01"
    CAUSES = {
        "53100": Cause.DISK_FULL,
        "58030": Cause.DISK_ERROR,
        "25006": Cause.READ_ONLY,
        "XX001": Cause.CORRUPT,
        "XX002": Cause.CORRUPT,
        "55P03": Cause.LOCKED,
        "57014": Cause.TOO_SLOW,
        "53300": Cause.TOO_MANY_CONNECTIONS,
        "42703": Cause.MIGRATION_MISSING,  # no column
        "42P01": Cause.MIGRATION_MISSING,  # no table
    }
    # Of them, and serialization failure and deadlock, it is known that nothing was written.
    ROLLED_BACK = frozenset(
        {"53100", "25006", "53300", "55P03", "40001", DEADLOCK, "57014", "42703", "42P01"}
    )
    # psycopg knows no code for a connection that was never made.
    NO_CONNECTION = (
        "connection failed", "connection is bad", "connection timeout expired", "failed to resolve host",
    )  # fmt: skip

    def find_cause(self, error: Exception) -> Cause | None:
        if is_connection_lost(error.__cause__):
            return Cause.UNAVAILABLE if isinstance(error, OperationalError | InterfaceError) else None
        return self.CAUSES.get(getattr(error.__cause__, "sqlstate", ""))

    def is_deadlock(self, error: OperationalError) -> bool:
        return getattr(error.__cause__, "sqlstate", None) == self.DEADLOCK

    def is_rolled_back(self, error: DatabaseError) -> bool:
        message = str(error.args[0]) if error.args else ""
        return (
            message.startswith(self.NO_CONNECTION)
            or isinstance(error.__cause__, LostTransaction)
            or getattr(error.__cause__, "sqlstate", None) in self.ROLLED_BACK
        )


def is_connection_lost(error: BaseException | None) -> bool:
    """Return whether an error of psycopg says that there is no connection, or that the server ends it."""
    state = getattr(error, "sqlstate", None)
    return state is None or state.startswith(("08", "57P"))


class PostgreSQLFragments(Fragments):
    # The database's locale decides. LIKE takes an index with the operator class varchar_pattern_ops.
    orders_by_code_point = False
    stores_parsed_json = True
    uuid_rows = "(SELECT value::uuid AS id FROM json_array_elements_text(%s::json)) AS given"
    stored_bytes = "pg_column_size(%(expressions)s)"  # reads no value that is stored apart from its row

    def timestamp_prefix(self, length: int) -> str:
        return f"LEFT(CAST(%(expressions)s AT TIME ZONE 'UTC' AS text), {length})"

    def elapsed_steps(self, step_ms: int, max_steps: int) -> tuple[str, str]:
        steps = f"CEIL(EXTRACT(EPOCH FROM (%(expressions)s)) * {1000 // step_ms})"
        return f"CAST(LEAST({max_steps}, GREATEST(0, {steps})) AS integer)", " - "


# The condition is in the function: the type of a column that a trigger's own definition names cannot be altered.
IMMUTABILITY_TRIGGER = ImmutabilityTrigger(
    create="""
CREATE OR REPLACE FUNCTION %(name)s() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.%(column)s IS DISTINCT FROM OLD.%(column)s THEN
        RAISE EXCEPTION '%(message)s' USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER %(name)s BEFORE UPDATE ON %(table)s FOR EACH ROW EXECUTE FUNCTION %(name)s()""",
    drop="DROP FUNCTION %(name)s() CASCADE",
)


class PostgreSQLDialect(Dialect):
    backup_tools = "pg_dump and pg_restore"
    now_strategy = PostgreSQLNowStrategy()
    locks = Locks()
    writer = PostgreSQLWriter()
    errors = PostgreSQLErrors()
    fragments = PostgreSQLFragments()
    immutability_trigger = IMMUTABILITY_TRIGGER
    health_checks = (health.check_session_timeouts, health.check_planner_statistics)

    def describe_lock_holder(self) -> str:
        return health.describe_lock_holder()

    def continue_sequence(self, cursor: Any, table: str, column: str, last: int) -> None:
        cursor.execute("SELECT setval(pg_get_serial_sequence(%s, %s), %s)", [f'"{table}"', column, last])

    def list_tables_without_statistics(self) -> list[str]:
        return list_tables_without_statistics()

    def gather_first_statistics(self, tables: Collection[str]) -> list[str]:
        names = [name for name in list_tables_without_statistics() if name in tables]
        with connection.cursor() as cursor:
            for name in names:
                cursor.execute(f"ANALYZE {connection.ops.quote_name(name)}")
        return names

    def gather_statistics(self, cursor: Any) -> None:
        cursor.execute("ANALYZE")

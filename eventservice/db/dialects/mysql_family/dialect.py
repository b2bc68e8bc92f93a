"""The common part of the dialects: time is per statement, and index entries that a statement passes are locked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, timedelta
from typing import TYPE_CHECKING, Any

from django.db import DatabaseError, OperationalError

from eventservice.db.dialects.base import (
    BulkWriter,
    Cause,
    Dialect,
    ErrorCodes,
    Fragments,
    ImmutabilityTrigger,
    LostTransaction,
)
from eventservice.db.dialects.mysql_family.health import describe_lock_holder
from eventservice.db.dialects.now_strategy import DbNowStrategy, Sql, TimestampStorage, render_moved

if TYPE_CHECKING:
    from eventservice.db.dialects.base import Model


class FamilyNowStrategy(DbNowStrategy):
    """The instant that the backend reads when a transaction begins (backend.py), and CURRENT_TIMESTAMP outside one."""

    prelude = "SELECT CURRENT_TIMESTAMP(6)"
    timestamp_parameter = "CAST(%s AS DATETIME(6))"
    epoch_ms_parameter = "CAST(%s AS SIGNED)"

    def render_now(self, connection: Any, offset: timedelta, storage: TimestampStorage) -> Sql:
        if connection.transaction_now is not None:
            instant = connection.transaction_now.replace(tzinfo=UTC) + offset
            return self.render_instant(connection, instant, storage)
        now, values = render_moved("CURRENT_TIMESTAMP(6)", "TIMESTAMPADD(MICROSECOND, %s, {now})", offset)
        if storage is TimestampStorage.EPOCH_MS:
            return f"(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', {now}) DIV 1000)", values
        return now, values


class FamilyWriter(BulkWriter):
    # Rows are named by their keys. The server may choose another index, and then locks the entries that it passes.
    update_hint = " FORCE INDEX (PRIMARY)"
    # The value that an upsert would have inserted into a column.
    inserted_value: str

    def upsert_sql(
        self,
        model: Model,
        columns: Sequence[str],
        key: Sequence[str],
        overwritten: Sequence[str],
        changes: str,
    ) -> str:
        overwrite = ", ".join(f"{name} = {self.inserted_value.format(name)}" for name in overwritten)
        insert = self.insert_sql(model, columns) + self.name_inserted(columns)
        return f"{insert} ON DUPLICATE KEY UPDATE {overwrite}, {changes}"

    def name_inserted(self, columns: Sequence[str]) -> str:
        """Return the clause that names the columns of the inserted row, if the database needs one."""
        return ""


class NumberedErrors(ErrorCodes):
    """The server's error number is the first argument."""

    DEADLOCK = 1213
    CAUSES = {
        1021: Cause.DISK_FULL,
        1114: Cause.DISK_FULL,
        1026: Cause.DISK_ERROR,
        1036: Cause.READ_ONLY,
        1290: Cause.READ_ONLY,
        1034: Cause.CORRUPT,
        1194: Cause.CORRUPT,
        1205: Cause.LOCKED,
        1969: Cause.TOO_SLOW,  # MariaDB
        3024: Cause.TOO_SLOW,  # MySQL
        1040: Cause.TOO_MANY_CONNECTIONS,
        1054: Cause.MIGRATION_MISSING,  # no column
        1146: Cause.MIGRATION_MISSING,  # no table
        2002: Cause.UNAVAILABLE,
        2003: Cause.UNAVAILABLE,
        2006: Cause.UNAVAILABLE,
        2013: Cause.UNAVAILABLE,
        4031: Cause.UNAVAILABLE,
    }
    # Disk full, read-only, too many connections, no connection, lock wait timeout, deadlock, statement timeout, no
    # column, no table.
    ROLLED_BACK = frozenset(
        {1021, 1114, 1036, 1290, 1040, 2002, 2003, 1205, DEADLOCK, 1969, 3024, 1054, 1146}
    )

    def find_cause(self, error: Exception) -> Cause | None:
        return self.CAUSES.get(error.args[0]) if error.args else None

    def is_deadlock(self, error: OperationalError) -> bool:
        return error.args[:1] == (self.DEADLOCK,)

    def is_rolled_back(self, error: DatabaseError) -> bool:
        return bool(error.args) and (
            error.args[0] in self.ROLLED_BACK or isinstance(error.__cause__, LostTransaction)
        )


class FamilyFragments(Fragments):
    # The servers prefer an index that compares more columns to one that has the wanted order.
    unindexed = "COALESCE(%(expressions)s)"
    # While a table is small, the servers may read it by another index and sort what they find. MySQL fails with error 1038
    # if a row to sort, with its request, is larger than the sort buffer.
    by_primary_key = "FORCE INDEX (PRIMARY)"

    def timestamp_prefix(self, length: int) -> str:
        return f"LEFT(CAST(%(expressions)s AS CHAR), {length})"

    def elapsed_steps(self, step_ms: int, max_steps: int) -> tuple[str, str]:
        steps = f"CEIL(TIMESTAMPDIFF(MICROSECOND, %(expressions)s) / -{step_ms * 1000})"
        return f"CAST(LEAST({max_steps}, GREATEST(0, {steps})) AS SIGNED)", ", "


# 3819 is the number of a violated CHECK, which Django knows as an IntegrityError.
IMMUTABILITY_TRIGGER = ImmutabilityTrigger(
    create=(
        "CREATE TRIGGER %(name)s BEFORE UPDATE ON %(table)s FOR EACH ROW"
        " IF NOT (NEW.%(column)s <=> OLD.%(column)s)"
        " THEN SIGNAL SQLSTATE '23000' SET MYSQL_ERRNO = 3819, MESSAGE_TEXT = '%(message)s'; END IF"
    ),
    drop="DROP TRIGGER %(name)s",
)


class FamilyDialect(Dialect):
    """The common part of MariaDB and MySQL."""

    now_strategy = FamilyNowStrategy()
    errors = NumberedErrors()
    immutability_trigger = IMMUTABILITY_TRIGGER

    def describe_lock_holder(self) -> str:
        return describe_lock_holder()

    def continue_sequence(self, cursor: Any, table: str, column: str, last: int) -> None:
        # A parameter is not allowed here. A smaller number than the table has leaves it as it is.
        cursor.execute(f"ALTER TABLE `{table}` AUTO_INCREMENT = {int(last) + 1}")

    def update_column_checks(self, schema_editor: Any, models: Iterable[Model]) -> None:
        for model in models:
            table = schema_editor.quote_name(model._meta.db_table)
            fields = model._meta.local_concrete_fields
            booleans = [field for field in fields if field.get_internal_type() == "BooleanField"]
            definition = _read_definition(schema_editor.connection, table) if booleans else ""
            for field in booleans:
                if f"{schema_editor.quote_name(field.column)} in (0,1)" not in definition:
                    check = field.db_check(schema_editor.connection)
                    schema_editor.execute(f"ALTER TABLE {table} ADD CHECK ({check})")


def _read_definition(on: Any, table: str) -> str:
    with on.cursor() as cursor:
        cursor.execute(f"SHOW CREATE TABLE {table}")
        return str(cursor.fetchone()[1])

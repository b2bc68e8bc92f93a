"""Many rows in one go: what the engine's batches are written with.

The ORM's `bulk_create` and `bulk_update` cost several times the statement itself (benchmarks/, performance.md). Here
a row is a tuple of plain values. On SQLite and MariaDB a batch is one `executemany`. On PostgreSQL it is one
statement that reads its rows from one JSON parameter: a statement a row costs a round trip and a plan each, and
before the tables have statistics that plan may walk all of a tenant's rows to find the one.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import cache, lru_cache
from typing import Any

import uuid6
from django.db import connection, models

Row = Sequence[Any]
Model = type[models.Model]
# A single call's rows, say: not worth the detour by columns.
MIN_ROWS_BY_COLUMN = 4


def insert_rows(model: Model, columns: Sequence[str], rows: Iterable[Row]) -> int:
    """One row a tuple, in the order of `columns`."""
    return _write(_insert_sql(connection.vendor, model, tuple(columns)), rows)


def update_rows(model: Model, assignments: str, condition: str, rows: Iterable[Row]) -> int:
    """`UPDATE model SET assignments WHERE condition`, once a row; how many rows it touched in all.

    Both are SQL in which `{column}` stands for a value of that column's type. A row gives these values in the
    order in which they are written, and each of the table's rows is touched by one of them at the most.
    """
    return _write(_update_sql(connection.vendor, model, assignments, condition), rows)


def execute_rows(sql: str, rows: Iterable[Row]) -> int:
    """Any other statement, once a row; how many rows it touched in all."""
    prepared = _prepared(rows)
    if not prepared:
        return 0
    with connection.cursor() as cursor:
        cursor.executemany(sql, prepared)
        return int(cursor.rowcount)


def _write(sql: str, rows: Iterable[Row]) -> int:
    if connection.vendor != "postgresql":
        return execute_rows(sql, rows)
    records = [dict(zip(_NAMES, row, strict=False)) for row in rows]
    if not records:
        return 0
    with connection.cursor() as cursor:
        cursor.execute(sql, [_to_json_record(records)])
        return int(cursor.rowcount)


# --- statements -----------------------------------------------------------------------------------------------

PLACEHOLDER = re.compile(r"\{(\w+)\}")
# How a record's values are called on their way to PostgreSQL.
_NAMES = [f"v{number}" for number in range(64)]


@cache
def _insert_sql(vendor: str, model: Model, columns: tuple[str, ...]) -> str:
    quote = connection.ops.quote_name
    into = f"INSERT INTO {quote(model._meta.db_table)} ({', '.join(map(quote, columns))})"
    if vendor == "postgresql":
        return f"{into} SELECT {', '.join(_NAMES[: len(columns)])} FROM {_recordset(model, columns)}"
    return f"{into} VALUES ({', '.join(['%s'] * len(columns))})"


@cache
def _update_sql(vendor: str, model: Model, assignments: str, condition: str) -> str:
    table = connection.ops.quote_name(model._meta.db_table)
    if vendor != "postgresql":
        # Rows are named by their keys. MariaDB may think of another index, and then locks what it passes.
        hint = " FORCE INDEX (PRIMARY)" if vendor == "mysql" else ""
        return PLACEHOLDER.sub("%s", f"UPDATE {table}{hint} SET {assignments} WHERE {condition}")
    columns = PLACEHOLDER.findall(f"{assignments} {condition}")
    sql = f"UPDATE {table} SET {assignments} FROM {_recordset(model, columns)} WHERE {condition}"
    names = iter(_NAMES)
    return PLACEHOLDER.sub(lambda placeholder: next(names), sql)


def _recordset(model: Model, columns: Sequence[str]) -> str:
    types = {field.column: field.rel_db_type(connection) for field in model._meta.local_concrete_fields}
    typed = ", ".join(f"{name} {types[column]}" for name, column in zip(_NAMES, columns, strict=False))
    return f"json_to_recordset(%s::json) AS given({typed})"


# --- values ---------------------------------------------------------------------------------------------------

# One encoder for all: json.dumps() would make one for each value.
to_json = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
# PostgreSQL reads ids and instants from their texts.
_to_json_record = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, default=str).encode


def _prepared(rows: Iterable[Row]) -> list[Row]:
    preparers = _preparers(connection.vendor)
    rows = list(rows)
    if len(rows) < MIN_ROWS_BY_COLUMN:
        return [[preparers.get(type(value), _as_is)(value) for value in row] for row in rows]
    # Column by column, each of one type: to look at every value by itself would take as long as the writing.
    columns = []
    for column in zip(*rows, strict=True):
        sample = next((value for value in column if value is not None), None)
        prepare = preparers.get(type(sample))
        columns.append([v if v is None else prepare(v) for v in column] if prepare else column)
    return list(zip(*columns, strict=True))


def _as_is(value: Any) -> Any:
    return value


def _digits(value: uuid.UUID) -> str:
    return value.hex


@cache
def _preparers(vendor: str) -> dict[type, Callable[[Any], Any]]:
    # All three databases read a UUID from its 32 digits; SQLite stores them.
    prepare: dict[type, Callable[[Any], Any]] = {
        uuid.UUID: _digits,
        uuid6.UUID: _digits,
        dict: to_json,
        list: to_json,
    }
    if vendor != "postgresql":
        # A batch writes the same few instants many times.
        prepare[datetime] = lru_cache(1024)(connection.ops.adapt_datetimefield_value)
    return prepare

"""Many rows in one statement: what the engine's batches are written with.

The ORM's `bulk_create` and `bulk_update` cost several times the statement itself (benchmarks/, performance.md);
here a row is a tuple, prepared for the database and handed to `executemany`.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import cache, lru_cache
from typing import Any

import uuid6
from django.db import connection, models

Row = Sequence[Any]
# A single call's rows, say: not worth the detour by columns.
FEW = 4


def insert_rows(model: type[models.Model], columns: Sequence[str], rows: Iterable[Row]) -> int:
    return execute_rows(_insert_sql(connection.vendor, model, tuple(columns)), rows)


@cache
def _insert_sql(vendor: str, model: type[models.Model], columns: tuple[str, ...]) -> str:
    quote = connection.ops.quote_name
    marks = ", ".join(["%s"] * len(columns))
    names = ", ".join(quote(column) for column in columns)
    return f"INSERT INTO {quote(model._meta.db_table)} ({names}) VALUES ({marks})"


def execute_rows(sql: str, rows: Iterable[Row]) -> int:
    """Run `sql` once a row; how many rows it touched in all."""
    prepared = _prepared(rows)
    if not prepared:
        return 0
    with connection.cursor() as cursor:
        cursor.executemany(sql, prepared)
        return int(cursor.rowcount)


def _prepared(rows: Iterable[Row]) -> list[Row]:
    preparers = _preparers(connection.vendor)
    rows = list(rows)
    if len(rows) < FEW:
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


# One encoder for all: json.dumps() would make one for each value.
to_json = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


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

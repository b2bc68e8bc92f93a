"""Many rows in one go: how the engine writes its batches.

The ORM's `bulk_create` and `bulk_update` cost several times the statement itself (benchmarks/). Here a row is a tuple
of plain values, and a batch is one `executemany`, or one statement where the dialect's `writer` says so.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import cache, lru_cache
from typing import Any

import uuid6
from django.db import connection, models
from pydantic_core import to_json as encode_json

from eventservice.db.dialects import get_dialect
from eventservice.db.dialects.base import BulkWriter

Row = Sequence[Any]
Model = type[models.Model]
# Fewer rows than this, such as those of a single call, are prepared value by value.
MIN_ROWS_BY_COLUMN = 4


def insert_rows(model: Model, columns: Sequence[str], rows: Iterable[Row]) -> int:
    """Insert rows, each a tuple in the order of `columns`, and return how many."""
    writer = get_dialect().writer
    return _write(writer, _insert_sql(writer, model, tuple(columns)), rows)


def update_rows(model: Model, assignments: str, condition: str, rows: Iterable[Row]) -> int:
    """Execute `UPDATE model SET assignments WHERE condition` once a row, and return how many rows it changed.

    Both are SQL in which `{column}` stands for a value of that column's type. A row has these values in the order in
    which they are written. No two rows may change the same row of the table.
    """
    writer = get_dialect().writer
    return _write(writer, _update_sql(writer, model, assignments, condition), rows)


class LostRace(Exception):
    """Raised when a row is not as its writer had read it: another writer has changed it. Nothing may be committed."""


def move_rows(model: Model, assignments: str, condition: str, rows: Sequence[Row], what: str) -> None:
    """Update rows as `update_rows` does. Raise LostRace, which says `what` was to happen, if the condition fails for any."""
    touched = update_rows(model, assignments, condition, rows)
    if touched != len(rows):
        raise LostRace(f"{what}: {touched} of {len(rows)} rows were as they had been read")


def upsert_rows(
    model: Model,
    columns: Sequence[str],
    rows: Iterable[Row],
    *,
    key: Sequence[str],
    overwritten: Sequence[str],
    changes: str,
) -> int:
    """Insert rows. Where a row with its `key` exists, overwrite the columns `overwritten` and apply `changes`."""
    writer = get_dialect().writer
    return _execute_each(writer, writer.upsert_sql(model, columns, key, overwritten, changes), rows)


def execute_rows(sql: str, rows: Iterable[Row]) -> int:
    """Execute any other statement once a row, and return how many rows it changed."""
    return _execute_each(get_dialect().writer, sql, rows)


def _execute_each(writer: BulkWriter, sql: str, rows: Iterable[Row]) -> int:
    prepared = _prepare_rows(writer, rows)
    if not prepared:
        return 0
    with connection.cursor() as cursor:
        cursor.executemany(sql, prepared)
        return int(cursor.rowcount)


def _write(writer: BulkWriter, sql: str, rows: Iterable[Row]) -> int:
    if not writer.reads_rows_from_json:
        return _execute_each(writer, sql, rows)
    records = [dict(zip(_NAMES, row, strict=False)) for row in rows]
    if not records:
        return 0
    with connection.cursor() as cursor:
        cursor.execute(sql, [to_json(records)])
        return int(cursor.rowcount)


# --- statements -----------------------------------------------------------------------------------------------

# The names of a row's values in JSON.
_NAMES = [f"v{number}" for number in range(64)]


@cache
def _insert_sql(writer: BulkWriter, model: Model, columns: tuple[str, ...]) -> str:
    return writer.insert_sql(model, columns)


@cache
def _update_sql(writer: BulkWriter, model: Model, assignments: str, condition: str) -> str:
    return writer.update_sql(model, assignments, condition)


# --- values ---------------------------------------------------------------------------------------------------


def to_json(value: object) -> str:
    """Return the value as compact JSON. Ids and moments become strings."""
    # The encoder of Pydantic takes a fifth of the time of Python's.
    return encode_json(value).decode()


def _prepare_rows(writer: BulkWriter, rows: Iterable[Row]) -> list[Row]:
    adapters = _get_adapters(writer)
    rows = list(rows)
    if len(rows) < MIN_ROWS_BY_COLUMN:
        return [[adapters.get(type(value), _keep)(value) for value in row] for row in rows]
    # Column by column, each of one type: looking at every value by itself would take as long as writing them.
    columns: list[Row] = []
    for column in zip(*rows, strict=True):
        sample = next((value for value in column if value is not None), None)
        if isinstance(sample, uuid.UUID):
            # As _to_digits does: half of all values are ids, and a call of a function takes as long as the rest.
            columns.append([None if v is None else f"{v.int:032x}" for v in column])
            continue
        adapt = adapters.get(type(sample))
        columns.append([v if v is None else adapt(v) for v in column] if adapt else column)
    return list(zip(*columns, strict=True))


def _keep(value: Any) -> Any:
    return value


def _to_digits(value: uuid.UUID) -> str:
    return f"{value.int:032x}"  # as `hex` does, without a property


@cache
def _get_adapters(writer: BulkWriter) -> dict[type, Callable[[Any], Any]]:
    # Every database reads a UUID from its 32 digits, and SQLite stores them.
    adapters: dict[type, Callable[[Any], Any]] = {
        uuid.UUID: _to_digits,
        uuid6.UUID: _to_digits,
        dict: to_json,
        list: to_json,
    }
    if writer.adapts_datetimes:
        # A batch writes the same few moments many times.
        adapters[datetime] = lru_cache(1024)(connection.ops.adapt_datetimefield_value)
    return adapters

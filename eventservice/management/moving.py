"""Moves all rows of one database to another: table by table, in the order of their primary keys, a batch in a transaction.

So what the target has of a table is always the beginning of it, and a move that was interrupted goes on after it: the
rows themselves are the progress. Nobody else may write to either database meanwhile.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.apps import apps
from django.db import connections, models, transaction

from eventservice.db.constraints import CompositeForeignKey
from eventservice.db.dialects import get_dialect
from eventservice.kernel.faults import trigger_fault
from eventservice.tenants.models import ApiKey
from timers.models import DispatchPause

Model = type[models.Model]
Row = models.Model
Key = tuple[Any, ...]

SOURCE, TARGET = "source", "target"
MAX_BATCH_ROWS = 500
# Of texts and binary values, so that a batch fits into a statement of any server.
MAX_BATCH_BYTES = 2_000_000
CHUNK_ROWS = 100
# Tables that a migration fills, with the same rows on every database.
FILLED_BY_MIGRATIONS = {"django_content_type", "auth_permission", "auth_group", "auth_group_permissions"}


class MoveError(Exception):
    """Raised if a move cannot begin or go on. The text says why, and what to do."""


@dataclass(frozen=True, slots=True)
class TableSum:
    """The number of rows of a table, and a sum of their contents that does not depend on their order."""

    rows: int
    checksum: str


def list_models() -> list[Model]:
    """Return the models of all tables that are moved: first those that others refer to, and API keys last.

    Without a key, nobody can submit anything to a target that is not complete. The pause of dispatch is not a part of
    the data: it marks both databases (see the command).
    """
    pending = [
        model
        for model in apps.get_models(include_auto_created=True)
        if model._meta.managed and not model._meta.proxy and model is not DispatchPause
    ]
    pending.sort(key=lambda model: (model is ApiKey, model._meta.db_table))
    found: list[Model] = []
    while pending:
        model = next(one for one in pending if not _list_references(one) & {*pending} - {one})
        found.append(model)
        pending.remove(model)
    return found


def _list_references(model: Model) -> set[Model]:
    """Return the models whose rows a row of this model may refer to."""
    fields: Iterable[Any] = model._meta.local_fields
    keys = (one for one in model._meta.constraints if isinstance(one, CompositeForeignKey))
    return {field.related_model for field in fields if field.is_relation} | {
        apps.get_model(key.to) for key in keys
    }


def find_foreign_tables() -> list[str]:
    """Return the tables of the target that are not of this service."""
    own = {model._meta.db_table for model in list_models()} | {
        DispatchPause._meta.db_table,
        "django_migrations",
    }
    with connections[TARGET].cursor() as cursor:
        return sorted(set(connections[TARGET].introspection.table_names(cursor)) - own)


def find_filled_tables() -> list[str]:
    """Return the tables of the target that have rows which no migration made."""
    connection = connections[TARGET]
    with connection.cursor() as cursor:
        present = set(connection.introspection.table_names(cursor))
    checked = {model._meta.db_table: model for model in list_models()}
    return [
        table
        for table, model in checked.items()
        if table in present - FILLED_BY_MIGRATIONS and _select(model, TARGET).exists()
    ]


def delete_rows_of_migrations() -> None:
    """Delete what the migrations put into the target: the source has these rows under keys of its own."""
    for model in reversed(list_models()):
        if model._meta.db_table in FILLED_BY_MIGRATIONS:
            _select(model, TARGET)._raw_delete(TARGET)  # without signals


def copy_table(model: Model, report: Callable[[int], object]) -> None:
    """Copy the rows that the target does not have yet. Pass the number of rows it has to `report` after each batch."""
    done = _select(model, TARGET).count()
    rows = _select(model, SOURCE).order_by(*_get_key_names(model))[done:].iterator(CHUNK_ROWS)
    for batch in _divide(rows):
        with transaction.atomic(using=TARGET):
            model._base_manager.using(TARGET).bulk_create(batch)
            trigger_fault("move.written")
        done += len(batch)
        report(done)
        trigger_fault("move.committed")


def continue_sequence(model: Model) -> None:
    """Let the target number new rows after those that the source has had, also if it has deleted them since."""
    field = model._meta.auto_field
    if field is None:
        return
    table = model._meta.db_table
    files = get_dialect(connections[SOURCE]).file_backups
    last = files.read_sequence(connections[SOURCE], table) if files else 0
    if last:
        with connections[TARGET].cursor() as cursor:
            get_dialect(connections[TARGET]).continue_sequence(cursor, table, str(field.column), last)


def gather_statistics() -> None:
    with connections[TARGET].cursor() as cursor:
        get_dialect(connections[TARGET]).gather_statistics(cursor)


def verify_table(model: Model) -> TableSum:
    """Compare the table in both databases. Raise MoveError if a row differs, is missing, or is one too many."""
    table, total, sums = model._meta.db_table, 0, [0, 0]
    rows = _select(model, SOURCE).order_by(*_get_key_names(model)).iterator(CHUNK_ROWS)
    for batch in _divide(rows):
        moved = _read_rows(model, [_get_key(row) for row in batch])
        for row in batch:
            key = _get_key(row)
            digest = _digest(row)
            copied = _digest(moved[key]) if key in moved else 0
            if digest != copied:
                raise MoveError(
                    f"{table}: the row {_format_key(key)} differs in the target, or is missing there."
                )
            sums = [sums[0] + digest, sums[1] + copied]
        total += len(batch)
    count = _select(model, TARGET).count()
    if count != total or sums[0] != sums[1]:
        raise MoveError(f"{table}: the target has {count:,} rows, and the source {total:,}.")
    return TableSum(total, f"{sums[1] % 2**64:016x}")


def _select(model: Model, alias: str) -> models.QuerySet[Any]:
    return model._base_manager.using(alias)


def _get_key_names(model: Model) -> list[str]:
    return [field.attname for field in model._meta.pk_fields]


def _get_key(row: Row) -> Key:
    return tuple(getattr(row, name) for name in _get_key_names(type(row)))


def _format_key(key: Key) -> str:
    return "/".join(map(str, key))


def _divide(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Divide the rows into batches of a limited number and size."""
    batch: list[Row] = []
    size = 0
    for row in rows:
        row_size = _estimate_bytes(row)
        if batch and (len(batch) == MAX_BATCH_ROWS or size + row_size > MAX_BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(row)
        size += row_size
    if batch:
        yield batch


def _estimate_bytes(row: Row) -> int:
    return sum(
        len(value if isinstance(value, str | bytes) else repr(value))
        for _, value in _list_values(row)
        if value
    )


def _list_values(row: Row) -> list[tuple[str, Any]]:
    """Return the values that are stored, by their columns. Those that the database computes follow from them."""
    fields = [field for field in type(row)._meta.local_concrete_fields if not field.generated]
    return [(str(field.column), getattr(row, field.attname)) for field in fields]


def _read_rows(model: Model, keys: Sequence[Key]) -> dict[Key, Row]:
    """Return the rows of the target that have these keys.

    By one column of the key, or by two, which every server finds by the index. There may be others beside them.
    """
    first, *others = _get_key_names(model)
    found = _select(model, TARGET)
    if not others:
        rows = list(found.filter(**{f"{first}__in": [key[0] for key in keys]}))
    else:
        groups: dict[Any, set[Any]] = {}
        for key in keys:
            groups.setdefault(key[0], set()).add(key[1])
        rows = [
            row
            for value, seconds in groups.items()
            for row in found.filter(**{first: value, f"{others[0]}__in": seconds})
        ]
    wanted = {*keys}
    return {key: row for row in rows if (key := _get_key(row)) in wanted}


def _digest(row: Row) -> int:
    values = [[column, _to_canonical(value)] for column, value in _list_values(row)]
    return int.from_bytes(hashlib.blake2b(json.dumps(values).encode(), digest_size=16).digest(), "big")


def _to_canonical(value: Any) -> str:
    """Return a text that two values have in common only if they are equal, to the microsecond and the last byte."""
    match value:
        case datetime():
            return value.astimezone(UTC).isoformat(timespec="microseconds")
        case UUID():
            return value.hex
        case bytes() | memoryview():
            return bytes(value).hex()
        case dict() | list():
            return json.dumps(value, sort_keys=True)
        case _:
            return repr(value)

"""Parts of queries that the databases render differently, and small parts of raw statements."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING
from uuid import UUID

from django.db import connection
from django.db.models import BigIntegerField, CharField, F, Func, IntegerField, Q, lookups

from eventservice.db.dialects import get_dialect
from eventservice.kernel.ids import parse_hex

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.models.expressions import Combinable
    from django.db.models.sql.compiler import SQLCompiler, _AsSqlType

    Operand = Combinable | str

MAX_CODE_POINT = 0x10FFFF
# No string has these code points.
SURROGATES = range(0xD800, 0xE000)


class Unindexed(Func):
    """A column that must not make the planner choose its index."""

    arity = 1

    def as_sql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **context: object) -> _AsSqlType:  # type: ignore[override]
        return super().as_sql(compiler, connection, template=get_dialect(connection).fragments.unindexed)


class TimestampPrefix(Func):
    """The first characters of a moment in UTC: `2026-03-01 12:05` are 16."""

    arity = 1
    output_field = CharField()

    def __init__(self, moment: Operand, length: int) -> None:
        super().__init__(moment)
        self.length = length

    def as_sql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **context: object) -> _AsSqlType:  # type: ignore[override]
        template = get_dialect(connection).fragments.timestamp_prefix(self.length)
        return super().as_sql(compiler, connection, template=template)


class StoredBytes(Func):
    """The size in bytes of a string or JSON column, and 0 for NULL."""

    arity = 1
    output_field = BigIntegerField()

    def as_sql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **context: object) -> _AsSqlType:  # type: ignore[override]
        template = f"COALESCE({get_dialect(connection).fragments.stored_bytes}, 0)"
        return super().as_sql(compiler, connection, template=template)


class ElapsedSteps(Func):
    """The number of steps of `step_ms` milliseconds that have begun from `start` to `end`, up to `max_steps`."""

    arity = 2
    output_field = IntegerField()

    def __init__(self, end: Operand, start: Operand, *, step_ms: int, max_steps: int) -> None:
        super().__init__(end, start)
        self.step_ms = step_ms
        self.max_steps = max_steps

    def as_sql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **context: object) -> _AsSqlType:  # type: ignore[override]
        fragments = get_dialect(connection).fragments
        template, joiner = fragments.elapsed_steps(self.step_ms, self.max_steps)
        return super().as_sql(compiler, connection, template=template, arg_joiner=joiner)


def match_prefix(column: F | Unindexed, prefix: str) -> Q:
    """Return the condition that a column begins with a string, in the form for which the database takes an index.

    On PostgreSQL, the index needs the operator class varchar_pattern_ops for the column.
    """
    if not orders_by_code_point():
        return Q(lookups.StartsWith(column, prefix))
    begin = Q(lookups.GreaterThanOrEqual(column, prefix))
    end = _find_end_of_prefix(prefix)
    return begin if end is None else begin & Q(lookups.LessThan(column, end))


def orders_by_code_point() -> bool:
    """Return whether strings with a prefix lie next to each other in every index."""
    return get_dialect(connection).fragments.orders_by_code_point


def stores_parsed_json() -> bool:
    """Return whether members of a JSON column are found without reading the others."""
    return get_dialect(connection).fragments.stores_parsed_json


def _find_end_of_prefix(prefix: str) -> str | None:
    """Return the first string after all that begin with the prefix, or None if there is no such string."""
    kept = prefix.rstrip(chr(MAX_CODE_POINT))
    if not kept:
        return None
    following = ord(kept[-1]) + 1
    return kept[:-1] + chr(SURROGATES.stop if following in SURROGATES else following)


def placeholders(values: Collection[object]) -> str:
    return ", ".join(["%s"] * len(values))


def as_uuid(value: UUID | str) -> UUID:
    """Return the UUID that a raw cursor has read: a string on SQLite and MariaDB."""
    return value if isinstance(value, UUID) else parse_hex(value.replace("-", ""))

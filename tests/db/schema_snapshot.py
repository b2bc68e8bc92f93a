"""The schema of a database as text, so that two databases can be compared: tables, columns, constraints, indexes, triggers."""

from __future__ import annotations

import re
from typing import Any

from django.db import connection

from tests.databases import get_database_name

# The name of a part of the schema, and its definition.
Schema = dict[str, str]

SQLITE = """
SELECT type || ' ' || name, sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%'
"""

POSTGRESQL = """
SELECT 'column ' || c.relname || '.' || a.attname, concat_ws(
    ' ', format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity, a.attgenerated, pg_get_expr(d.adbin, d.adrelid)
)
FROM pg_class c
    JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p')
UNION ALL
SELECT 'constraint ' || conrelid::regclass || '.' || conname, pg_get_constraintdef(oid)
FROM pg_constraint WHERE connamespace = 'public'::regnamespace
UNION ALL
SELECT 'index ' || indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'
UNION ALL
SELECT 'trigger ' || tgrelid::regclass || '.' || tgname, pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal
UNION ALL
SELECT 'function ' || proname, pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'public'::regnamespace
UNION ALL
SELECT 'partitions ' || relname, pg_get_partkeydef(oid)
FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'p'
"""

TRIGGERS = """
SELECT CONCAT('trigger ', trigger_name),
    CONCAT_WS(' ', action_timing, event_manipulation, event_object_table, action_statement)
FROM information_schema.triggers WHERE trigger_schema = DATABASE()
"""


# Django creates its own record of migrations before any of them is applied, and no model describes it.
UNMANAGED = "table django_migrations"


def read_schema() -> Schema:
    schema = _read_schema()
    schema.pop(UNMANAGED, None)
    return schema


def list_differences(found: Schema, expected: Schema) -> list[str]:
    """Return the lines of definitions that only one of the schemas has."""
    lines, others = _list_lines(found), _list_lines(expected)
    return [f"unexpected {line}" for line in sorted(lines - others)] + [
        f"missing {line}" for line in sorted(others - lines)
    ]


def _list_lines(schema: Schema) -> set[str]:
    return {f"{name}: {line}" for name, definition in schema.items() for line in definition.splitlines()}


def _read_schema() -> Schema:
    match get_database_name():
        case "sqlite":
            # Beginning and end of a table are parts of their own, whichever column is the first or last.
            separator = r'(?<=") \((?=")|,\s*|\)(?= STRICT$)'
            return {name: _sort_parts(sql, separator) for name, sql in _fetch(SQLITE)}
        case "postgresql":
            return dict(_fetch(POSTGRESQL))
        case _:
            return _read_tables() | dict(_fetch(TRIGGERS))


def _read_tables() -> Schema:
    definitions = (
        _fetch(f"SHOW CREATE TABLE {connection.ops.quote_name(name)}")[0] for name in _list_tables()
    )
    return {f"table {name}": _sort_parts(_drop_names(sql), r",?\n\s*") for name, sql in definitions}


def _drop_names(sql: str) -> str:
    """Return a definition without the counter of ids, and without what tells the CHECK of a column from one of its table."""
    sql = re.sub(r" AUTO_INCREMENT=\d+", "", sql)
    sql = re.sub(r"CONSTRAINT `(CONSTRAINT|\w+_chk)_\d+` ", "", sql)
    return re.sub(r"^(\s*`.*?) (CHECK \(.*)$", r"\1,\n\2", sql, flags=re.MULTILINE)


def _list_tables() -> list[str]:
    with connection.cursor() as cursor:
        return connection.introspection.table_names(cursor)


def _sort_parts(definition: str, separator: str) -> str:
    """Return a definition that does not depend on the order in which columns, constraints and indexes were added."""
    return "\n".join(sorted(re.split(separator, definition)))


def _fetch(sql: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, None)
        return list(cursor.fetchall())

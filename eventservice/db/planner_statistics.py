"""PostgreSQL's first statistics. Until a table has some, it is planned for as if it were empty, and a foreign key may
be checked by walking through all rows of a tenant; autovacuum comes by once a minute only."""

from __future__ import annotations

from collections.abc import Collection

from django.db import connection

# Empty tables are not worth it, and have nothing to tell.
LEAST_BYTES = 64 * 1024

# Read from the catalogue itself: what pg_stat_user_tables says of rows lags behind. An index made after the rows, as
# a restored dump makes it, sets reltuples, but knows nothing of the columns.
_WITHOUT = """
SELECT relname FROM pg_class AS t
WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r'
  AND has_table_privilege(oid, 'SELECT') AND pg_relation_size(oid) >= %s
  AND (reltuples <= 0 OR NOT EXISTS (
    SELECT FROM pg_stats WHERE schemaname = current_schema() AND tablename = t.relname))
ORDER BY relname
"""


def tables_without_statistics() -> list[str]:
    """Those that hold something, or did before a rollback."""
    if connection.vendor != "postgresql":
        return []
    with connection.cursor() as cursor:
        cursor.execute(_WITHOUT, [LEAST_BYTES])
        return [name for (name,) in cursor.fetchall()]


def gather_first_statistics(tables: Collection[str]) -> list[str]:
    """Of those that have rows and no statistics; which ones. All later ones are autovacuum's."""
    names = [name for name in tables_without_statistics() if name in tables]
    with connection.cursor() as cursor:
        for name in names:
            cursor.execute(f"ANALYZE {connection.ops.quote_name(name)}")
    return names

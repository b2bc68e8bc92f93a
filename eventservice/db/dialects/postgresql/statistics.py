"""PostgreSQL's first statistics.

Until a table has some, it is planned for as if it were empty, and a foreign key may be checked by walking through all
rows of a tenant; autovacuum comes by once a minute only. All later statistics are autovacuum's.
"""

from __future__ import annotations

from django.db import connection

# Statistics of smaller tables make no difference.
MIN_BYTES = 64 * 1024

# Read from the catalog itself: the row counts of pg_stat_user_tables lag behind. An index made after the rows, as
# a restored dump makes it, sets reltuples, but knows nothing of the columns.
_WITHOUT = """
SELECT relname FROM pg_class AS t
WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r'
  AND has_table_privilege(oid, 'SELECT') AND pg_relation_size(oid) >= %s
  AND (reltuples <= 0 OR NOT EXISTS (
    SELECT FROM pg_stats WHERE schemaname = current_schema() AND tablename = t.relname))
ORDER BY relname
"""


def list_tables_without_statistics() -> list[str]:
    """Return the tables that hold something, or did before a rollback."""
    with connection.cursor() as cursor:
        cursor.execute(_WITHOUT, [MIN_BYTES])
        return [name for (name,) in cursor.fetchall()]

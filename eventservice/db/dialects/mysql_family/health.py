"""Checks that MariaDB and MySQL share."""

from __future__ import annotations

from eventservice.db.dialects.health import describe_session, fetch_value
from eventservice.kernel.findings import Finding, check

# The session with the oldest transaction that waits for nobody and has locked rows. It needs the privilege PROCESS.
LOCK_HOLDER_SQL = """
SELECT process.id, process.user, process.host, process.command, TIMESTAMPDIFF(SECOND, holder.trx_started, NOW()),
       holder.trx_query
FROM information_schema.innodb_trx AS holder
JOIN information_schema.processlist AS process ON process.id = holder.trx_mysql_thread_id
WHERE process.id <> CONNECTION_ID() AND process.db = DATABASE() AND holder.trx_state <> 'LOCK WAIT'
  AND (holder.trx_tables_locked > 0 OR holder.trx_rows_locked > 0 OR holder.trx_rows_modified > 0)
ORDER BY holder.trx_started
LIMIT 1"""


def describe_lock_holder() -> str:
    return describe_session(LOCK_HOLDER_SQL, "KILL {};")


def check_binary_collation(recommended: str) -> Finding:
    """Check that all tables compare strings by their bytes."""
    wrong = fetch_value(
        "SELECT GROUP_CONCAT(table_name) FROM information_schema.tables"
        " WHERE table_schema = DATABASE() AND table_type = 'BASE TABLE' AND table_collation NOT LIKE 'utf8mb4%bin'"
    )
    text = f"not binary: {wrong}" if wrong else str(fetch_value("SELECT @@collation_database"))
    remedy = f"Create the database with CHARACTER SET utf8mb4 COLLATE {recommended}: ids and tags are compared by bytes."
    return check("collation", not wrong, text, remedy)

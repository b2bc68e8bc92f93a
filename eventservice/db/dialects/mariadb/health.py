"""Checks of MariaDB for `manage.py doctor`: the tables' collation and the session's timeouts."""

from __future__ import annotations

from collections.abc import Iterator

from eventservice.db.dialects.health import check_timeouts, fetch_value
from eventservice.kernel.findings import Finding, check

TIMEOUTS = ("idle_transaction_timeout", "innodb_lock_wait_timeout", "lock_wait_timeout", "max_statement_time")


def check_collation() -> Iterator[Finding]:
    yield check_binary_collation("utf8mb4_nopad_bin")


def check_binary_collation(recommended: str) -> Finding:
    """Return whether all tables compare strings by their bytes."""
    wrong = fetch_value(
        "SELECT GROUP_CONCAT(table_name) FROM information_schema.tables"
        " WHERE table_schema = DATABASE() AND table_type = 'BASE TABLE' AND table_collation NOT LIKE 'utf8mb4%bin'"
    )
    text = f"not binary: {wrong}" if wrong else str(fetch_value("SELECT @@collation_database"))
    remedy = f"Create the database with CHARACTER SET utf8mb4 COLLATE {recommended}: ids and tags are compared by bytes."
    return check("collation", not wrong, text, remedy)


def check_session_timeouts() -> Iterator[Finding]:
    yield check_timeouts({name: f"SELECT @@{name}" for name in TIMEOUTS})

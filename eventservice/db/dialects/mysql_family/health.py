"""Checks that MariaDB and MySQL share."""

from __future__ import annotations

from eventservice.db.dialects.health import fetch_value
from eventservice.kernel.findings import Finding, check


def check_binary_collation(recommended: str) -> Finding:
    """Check that all tables compare strings by their bytes."""
    wrong = fetch_value(
        "SELECT GROUP_CONCAT(table_name) FROM information_schema.tables"
        " WHERE table_schema = DATABASE() AND table_type = 'BASE TABLE' AND table_collation NOT LIKE 'utf8mb4%bin'"
    )
    text = f"not binary: {wrong}" if wrong else str(fetch_value("SELECT @@collation_database"))
    remedy = f"Create the database with CHARACTER SET utf8mb4 COLLATE {recommended}: ids and tags are compared by bytes."
    return check("collation", not wrong, text, remedy)

"""An outside process that holds locks of the database: SQLite's write lock, or rows and whole tables elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from django.db import connection

from tests.process_harness import ProcessHarness, Program, wait_until

# It waits for its input to end, and takes what time it needs to get the lock. Its own session has no limits.
HOLDER = """
import sys, django; django.setup()
from django.db import connection, transaction
statements = sys.argv[1:]
with transaction.atomic():
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
            if cursor.description:
                cursor.fetchall()
    print("locked", flush=True)
    import time; time.sleep(3600)
"""
NO_LIMITS = {
    "DB_IDLE_TRANSACTION_SECONDS": "3600",
    "DB_LOCK_SECONDS": "15",
    "DB_STATEMENT_SECONDS": "60",
    "NODE_LEASE_SECONDS": "30",
}
# What every pass of a role and every slice of a chain writes.
TABLES = ("cluster_slots", "nodes")


def build_statements(kind: str, tables: Sequence[str]) -> list[str]:
    """Return the statements that take the locks. SQLite locks the whole file when a transaction begins."""
    if connection.vendor == "sqlite":
        return []
    if kind == "rows":
        return [f"SELECT * FROM {table} FOR UPDATE" for table in tables]
    if connection.vendor == "postgresql":
        return [f"LOCK TABLE {', '.join(tables)} IN ACCESS EXCLUSIVE MODE"]
    return ["LOCK TABLES " + ", ".join(f"{table} WRITE" for table in tables)]


@contextmanager
def hold_locks(
    harness: ProcessHarness, kind: str = "rows", tables: Sequence[str] = TABLES
) -> Iterator[Program]:
    """Hold the locks in another process until the block ends."""
    holder = harness.start(
        "holder", [sys.executable, "-c", HOLDER, *build_statements(kind, tables)], **NO_LIMITS
    )
    wait_until(lambda: "locked" in holder.log or not holder.is_running, "the locks are held")
    assert holder.is_running, holder.log
    try:
        yield holder
    finally:
        holder.kill()

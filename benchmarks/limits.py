"""How fast the database is alone: an upper bound for the system, measured beside it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from eventservice.db.dialects.sqlite.library import prefer_fixed_library

ROWS = 50_000
BATCH_SIZE = 1000
COLUMNS = (
    "(id INTEGER PRIMARY KEY, name TEXT NOT NULL, body TEXT NOT NULL, due TEXT NOT NULL, state TEXT NOT NULL)"
)


def split_into_batches(rows: int) -> Iterator[range]:
    for first in range(0, rows, BATCH_SIZE):
        yield range(first, min(first + BATCH_SIZE, rows))


def build_row(number: int) -> tuple[int, str, str, str, str]:
    return number, f"call {number}", "y" * 200, f"2026-01-01 00:00:00.{number % 1000000:06d}", "Scheduled"


def build_change(number: int) -> tuple[str, str, int]:
    return "Done", build_row(number)[3], number


def measure_sqlite(folder: Path, rows: int = ROWS) -> dict[str, float]:
    """Return rows per second in WAL mode with synchronous NORMAL and 1,000 rows per transaction.

    The SQLite library is the one that the system uses.
    """
    prefer_fixed_library()
    import sqlite3

    path = folder / "limits.sqlite3"
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"CREATE TABLE calls {COLUMNS} STRICT")
        connection.execute("CREATE INDEX calls_state ON calls (state, due)")
        inserts = _measure_on_sqlite(connection, "INSERT INTO calls VALUES (?, ?, ?, ?, ?)", build_row, rows)
        change = "UPDATE calls SET state = ?, due = ? WHERE id = ?"
        updates = _measure_on_sqlite(connection, change, build_change, rows)
    finally:
        connection.close()
        for part in folder.glob("limits.sqlite3*"):
            part.unlink()
    return {"inserts": inserts, "updates": updates}


def _measure_on_sqlite(connection: Any, sql: str, build: Callable[[int], Any], rows: int) -> float:
    started = time.monotonic()
    for numbers in split_into_batches(rows):
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(sql, [build(number) for number in numbers])
        connection.execute("COMMIT")
    return rows / (time.monotonic() - started)


def measure_postgresql(url: str, rows: int = ROWS) -> dict[str, float]:
    """Return rows per second with psycopg's executemany and 1,000 rows per transaction."""
    import psycopg

    statements: dict[str, tuple[str, Callable[[int], Any]]] = {
        "inserts": ("INSERT INTO bench_limits VALUES (%s, %s, %s, %s, %s)", build_row),
        "updates": ("UPDATE bench_limits SET state = %s, due = %s WHERE id = %s", build_change),
    }
    rates = {}
    with psycopg.connect(url.replace("postgres://", "postgresql://"), autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS bench_limits")
        connection.execute(f"CREATE TABLE bench_limits {COLUMNS}".encode())
        connection.execute("CREATE INDEX bench_limits_state ON bench_limits (state, due)")
        for name, (sql, build) in statements.items():
            started = time.monotonic()
            for numbers in split_into_batches(rows):
                with connection.transaction(), connection.cursor() as cursor:
                    cursor.executemany(sql.encode(), [build(number) for number in numbers])
            rates[name] = rows / (time.monotonic() - started)
        connection.execute("DROP TABLE bench_limits")
    return rates


def measure_database(folder: Path, database: dict[str, str], rows: int = ROWS) -> dict[str, float]:
    """Return rows per second of the database that the system runs on; nothing for MariaDB."""
    url = database.get("DATABASE_URL", "")
    if not url:
        return measure_sqlite(folder, rows)
    return measure_postgresql(url, rows) if url.startswith("postgres") else {}

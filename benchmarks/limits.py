"""What the layers below can do alone, measured beside the system: never faster than these, together slower."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from eventservice.db.dialects.sqlite.library import prefer_fixed_library

ROWS = 50_000
BATCH = 1000
TABLE = (
    "(id INTEGER PRIMARY KEY, name TEXT NOT NULL, body TEXT NOT NULL, due TEXT NOT NULL, state TEXT NOT NULL)"
)


def batches(rows: int) -> Iterator[range]:
    for first in range(0, rows, BATCH):
        yield range(first, min(first + BATCH, rows))


def row(number: int) -> tuple[int, str, str, str, str]:
    return number, f"call {number}", "y" * 200, f"2026-01-01 00:00:00.{number % 1000000:06d}", "Scheduled"


def sqlite_rates(folder: Path, rows: int = ROWS) -> dict[str, float]:
    """Rows a second: WAL, synchronous NORMAL, 1,000 rows a transaction, in the library that the system uses."""
    prefer_fixed_library()
    import sqlite3

    path = folder / "limits.sqlite3"
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"CREATE TABLE calls {TABLE} STRICT")
        connection.execute("CREATE INDEX calls_state ON calls (state, due)")
        inserts = _rate(connection, "INSERT INTO calls VALUES (?, ?, ?, ?, ?)", row, rows)
        change = "UPDATE calls SET state = ?, due = ? WHERE id = ?"
        updates = _rate(connection, change, lambda number: ("Done", row(number)[3], number), rows)
    finally:
        connection.close()
        for part in folder.glob("limits.sqlite3*"):
            part.unlink()
    return {"inserts": inserts, "updates": updates}


def _rate(connection: Any, sql: str, values: Any, rows: int) -> float:
    began = time.monotonic()
    for numbers in batches(rows):
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(sql, [values(number) for number in numbers])
        connection.execute("COMMIT")
    return rows / (time.monotonic() - began)


def postgres_rates(url: str, rows: int = ROWS) -> dict[str, float]:
    """Rows a second with psycopg's executemany, 1,000 a transaction, in a table of the session's own database."""
    import psycopg

    with psycopg.connect(url.replace("postgres://", "postgresql://"), autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS bench_limits")
        connection.execute(f"CREATE TABLE bench_limits {TABLE}".encode())
        connection.execute("CREATE INDEX bench_limits_state ON bench_limits (state, due)")
        rates = []
        for sql, values in (
            ("INSERT INTO bench_limits VALUES (%s, %s, %s, %s, %s)", row),
            ("UPDATE bench_limits SET state = %s, due = %s WHERE id = %s", lambda n: ("Done", row(n)[3], n)),
        ):
            began = time.monotonic()
            for numbers in batches(rows):
                with connection.transaction(), connection.cursor() as cursor:
                    cursor.executemany(sql.encode(), [values(number) for number in numbers])
            rates.append(rows / (time.monotonic() - began))
        connection.execute("DROP TABLE bench_limits")
    return {"inserts": rates[0], "updates": rates[1]}


def database_rates(folder: Path, database: dict[str, str], rows: int = ROWS) -> dict[str, float]:
    """Of the database that the system runs on; none for MariaDB."""
    url = database.get("DATABASE_URL", "")
    if not url:
        return sqlite_rates(folder, rows)
    return postgres_rates(url, rows) if url.startswith("postgres") else {}

"""How much a pending timer occupies, in its table and in the tables beside it: data and indexes.

The calls are submitted in batches, due evenly within a year, as `pending` does. The specification estimates 100 MB of data
and 20 MB of indexes for 1,000,000 timers; `timer_schedules` is the table that it means.
"""

from __future__ import annotations

import argparse
import sqlite3
import time
from collections import defaultdict
from typing import Any

from benchmarks.command_line import create_parser, parse_positive, run_program
from benchmarks.pending import CHUNK_SIZE, YEAR_SECONDS
from benchmarks.processes import BenchmarkError
from benchmarks.report import Report, log_progress
from benchmarks.system import Workspace, build_environment, start_agent

TIMERS = "timer_schedules"
TABLES = (TIMERS, "service_calls", "outbox")
URL = "http://127.0.0.1:9/ok"  # Nothing is sent.
MB = 1_000_000

Sizes = dict[str, dict[str, int]]


def read_sqlite_sizes(path: str) -> Sizes:
    """Return the bytes of the pages of each table and of its indexes. The primary key is one of the indexes."""
    with sqlite3.connect(path) as database:
        try:
            pages = database.execute("SELECT name, pgsize FROM dbstat WHERE aggregate = TRUE").fetchall()
        except sqlite3.OperationalError as error:
            raise BenchmarkError(f"this Python's SQLite cannot tell sizes: {error}") from error
        tables = dict(database.execute("SELECT name, tbl_name FROM sqlite_schema"))
    sizes: Sizes = defaultdict(lambda: {"data": 0, "indexes": 0})
    for name, size in pages:
        sizes[tables.get(name, name)]["data" if tables.get(name) == name else "indexes"] += size
    return sizes


def measure(workspace: Workspace, options: argparse.Namespace, report: Report) -> None:
    database = workspace.create_database()
    with start_agent(workspace, build_environment(database)) as agent:
        agent("migrate")
        tenant = agent("ensure_tenant", name="later", limits=False)["id"]
        for first in range(0, options.calls, CHUNK_SIZE):
            size, due = min(CHUNK_SIZE, options.calls - first), time.time() + YEAR_SECONDS / 12 + first
            agent("submit_calls", tenant=tenant, url=URL, count=size, due=due, over=YEAR_SECONDS)
            log_progress(f"{first + size:,} calls submitted")
        sizes = read_sqlite_sizes(database["DB_PATH"]) if "DB_PATH" in database else agent("read_sizes")
    rows: list[list[Any]] = []
    for table in TABLES:
        data, indexes = sizes[table]["data"], sizes[table]["indexes"]
        report.figures[table] = {
            "data_mb": round(data / MB, 1),
            "indexes_mb": round(indexes / MB, 1),
            "bytes_per_timer": round((data + indexes) / options.calls),
        }
        rows.append([table, *report.figures[table].values()])
    report.add_table(
        f"Sizes with {options.calls:,} pending timers",
        ["table", "data, MB", "indexes, MB", "bytes per timer"],
        rows,
    )


def build_parser() -> argparse.ArgumentParser:
    parser = create_parser("storage", __doc__, rounds=1)
    parser.add_argument(
        "--calls", type=parse_positive, default=1_000_000, help="pending timers (default: %(default)s)"
    )
    return parser


if __name__ == "__main__":
    run_program(build_parser(), "storage", measure)

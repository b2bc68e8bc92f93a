"""Checks of SQLite for `manage.py doctor`: the library, the connection and the disk."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.db import connection

from eventservice.db.dialects.health import fetch_value
from eventservice.db.dialects.sqlite.library import BUSY_SECONDS, FIXED
from eventservice.kernel.file_permissions import check_permissions
from eventservice.kernel.findings import Finding, check

PRAGMAS = {"journal_mode": "wal", "foreign_keys": 1, "synchronous": 2, "busy_timeout": 1000 * BUSY_SECONDS}
MIN_FREE_BYTES = 1 << 30


def check_sqlite_library() -> Iterator[Finding]:
    library: Any = connection.Database  # type: ignore[attr-defined]
    remedy = (
        "Install pysqlite3 (requirements.lock): this version of SQLite can lose pages when the WAL is reset."
    )
    yield check("sqlite_library", library.sqlite_version_info >= FIXED, library.sqlite_version, remedy)


def check_sqlite_pragmas() -> Iterator[Finding]:
    found = {name: fetch_value(f"PRAGMA {name}") for name in PRAGMAS}
    text = ", ".join(f"{name}={value}" for name, value in found.items())
    remedy = "Keep the file on a local disk: WAL does not work on a share."
    yield check("sqlite_pragmas", found == PRAGMAS, text, remedy)


def check_database_files() -> Iterator[Finding]:
    file = connection.settings_dict["NAME"]
    yield check_permissions("database_files", [Path(f"{file}{suffix}") for suffix in ("", "-wal", "-shm")])


def check_disk_space() -> Iterator[Finding]:
    folder = Path(connection.settings_dict["NAME"]).absolute().parent
    free = shutil.disk_usage(folder).free
    remedy = f"Free at least {MIN_FREE_BYTES >> 30} GiB for the WAL, or move DB_PATH."
    yield check("disk_space", free >= MIN_FREE_BYTES, f"{free / (1 << 30):.1f} GiB free at {folder}", remedy)

"""Checks of SQLite for `manage.py doctor`: the library, the connection, the write lock and the disk."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from django.db import connection

from eventservice.db.dialects.health import fetch_value
from eventservice.db.dialects.sqlite.library import BUSY_SECONDS, FIXED
from eventservice.db.dialects.sqlite.processes import describe_process
from eventservice.kernel.file_permissions import check_permissions
from eventservice.kernel.findings import Finding, check

PRAGMAS = {"journal_mode": "wal", "foreign_keys": 1, "synchronous": 2, "busy_timeout": 1000 * BUSY_SECONDS}
MIN_FREE_BYTES = 1 << 30
# In WAL mode, whoever writes has locked this byte of the file beside the database (https://sqlite.org/walformat.html).
WRITE_LOCK_BYTE = 120


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
    yield from check_database_lock()


def check_database_lock() -> Iterator[Finding]:
    """Say which other process holds the write lock at this moment, where /proc knows it. It is no problem in itself."""
    yield check("database_lock", True, describe_lock_holder() or "no other process holds the write lock")


def describe_lock_holder() -> str:
    """Return a sentence that names the other process that holds the write lock, if there is one and /proc knows it."""
    try:
        locks = Path("/proc/locks").read_text().splitlines()
        state = Path(f"{connection.settings_dict['NAME']}-shm").stat()
    except OSError:
        return ""
    holder = find_lock_holder(locks, state.st_dev, state.st_ino, WRITE_LOCK_BYTE)
    if holder is None or (holder == os.getpid() and connection.in_atomic_block):
        return ""  # nobody, or the caller's own transaction
    return f"The write lock is held by {describe_process(holder)}."


def find_lock_holder(locks: Iterable[str], device: int, inode: int, byte: int) -> int | None:
    """Return the process that has locked this byte of a file for writing, according to the lines of /proc/locks.

    A line is `1: POSIX  ADVISORY  WRITE 4711 fd:01:1234567 120 120`. Those of processes that wait have an arrow.
    """
    file = f"{os.major(device):02x}:{os.minor(device):02x}:{inode}"
    for line in locks:
        fields = line.split()
        if fields[1:4] != ["POSIX", "ADVISORY", "WRITE"] or len(fields) < 8:
            continue
        process, place, start, end = fields[4:8]
        if place == file and int(start) <= byte and (end == "EOF" or byte <= int(end)):
            return int(process)
    return None


def check_database_files() -> Iterator[Finding]:
    file = connection.settings_dict["NAME"]
    yield check_permissions("database_files", [Path(f"{file}{suffix}") for suffix in ("", "-wal", "-shm")])


def check_disk_space() -> Iterator[Finding]:
    folder, free = _get_folder(), count_free_bytes()
    remedy = f"Free at least {MIN_FREE_BYTES >> 30} GiB for the WAL, or move DB_PATH."
    yield check("disk_space", free >= MIN_FREE_BYTES, f"{free / (1 << 30):.1f} GiB free at {folder}", remedy)


def count_free_bytes() -> int:
    return shutil.disk_usage(_get_folder()).free


def _get_folder() -> Path:
    return Path(connection.settings_dict["NAME"]).absolute().parent

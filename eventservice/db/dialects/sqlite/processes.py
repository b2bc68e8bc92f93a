"""The processes that have an SQLite database open, as /proc knows them."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

MAX_COMMAND_LENGTH = 80


def list_users(file: Path) -> list[int]:
    """Return the other processes that have the database open, as far as this user may see them."""
    wanted = set()
    for suffix in ("", "-wal", "-shm"):
        with suppress(OSError):
            wanted.add(_identify(Path(f"{file}{suffix}")))
    folders = [folder for folder in Path("/proc").glob("[0-9]*/fd") if folder.parent.name != str(os.getpid())]
    return sorted(int(folder.parent.name) for folder in folders if _has_open(folder, wanted))


def _has_open(folder: Path, wanted: set[tuple[int, int]]) -> bool:
    try:
        descriptors = list(folder.iterdir())
    except OSError:  # the process has ended, or belongs to somebody else
        return False
    for descriptor in descriptors:
        with suppress(OSError):
            if _identify(descriptor) in wanted:
                return True
    return False


def _identify(path: Path) -> tuple[int, int]:
    state = path.stat()
    return state.st_dev, state.st_ino


def describe_process(process_id: int) -> str:
    """Return a process with its command, as far as this user may read it."""
    try:
        command = Path(f"/proc/{process_id}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        command = ""
    text = " ".join(command.replace("\0", " ").split())
    if len(text) > MAX_COMMAND_LENGTH:
        text = f"{text[:MAX_COMMAND_LENGTH]}…"
    return f"process {process_id} ({text})" if text else f"process {process_id}"

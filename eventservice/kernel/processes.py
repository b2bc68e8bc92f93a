"""The state of a process on this host, from /proc."""

from __future__ import annotations

import os
import resource
from functools import cache
from pathlib import Path
from typing import NamedTuple

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
# The places of values in /proc/<pid>/stat, counted behind the name of the command.
STATE, USER_TIME, SYSTEM_TIME, START_TIME, RESIDENT_PAGES = 0, 11, 12, 19, 21
# The state of a process that SIGSTOP or a debugger has stopped.
STOPPED = frozenset("tT")


class ProcessState(NamedTuple):
    is_stopped: bool
    cpu_seconds: float
    resident_bytes: int
    open_files: int
    # In Unix time.
    started_at: float


def read_process(pid: int) -> ProcessState | None:
    """Return the state of a process, or None if it has ended or belongs to another user."""
    folder = Path(f"/proc/{pid}")
    try:
        values = (folder / "stat").read_text().rpartition(")")[2].split()
        open_files = len(os.listdir(folder / "fd"))  # noqa: PTH208 - the names are not needed
    except OSError:
        return None
    return ProcessState(
        values[STATE] in STOPPED,
        (int(values[USER_TIME]) + int(values[SYSTEM_TIME])) / TICKS_PER_SECOND,
        int(values[RESIDENT_PAGES]) * resource.getpagesize(),
        open_files,
        _read_boot_time() + int(values[START_TIME]) / TICKS_PER_SECOND,
    )


def is_running(pid: int) -> bool:
    """Return whether there is a process of this id, of any user."""
    return Path(f"/proc/{pid}").exists()


@cache
def _read_boot_time() -> float:
    lines = Path("/proc/stat").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("btime "))

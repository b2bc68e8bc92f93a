"""What processes use, read from /proc."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

TICKS = os.sysconf("SC_CLK_TCK")
GONE = (FileNotFoundError, ProcessLookupError, PermissionError)


class Stat(NamedTuple):
    parent: int
    group: int
    cpu_seconds: float
    started: int  # in ticks since the boot: with the pid it names a process for good


def stat(pid: int) -> Stat | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except GONE:
        return None
    if fields[0] in "ZX":
        return None
    return Stat(int(fields[1]), int(fields[2]), (int(fields[11]) + int(fields[12])) / TICKS, int(fields[19]))


def all_stats() -> dict[int, Stat]:
    pids = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())
    return {pid: found for pid in pids if (found := stat(pid))}


def descendants(root: int) -> list[int]:
    stats = all_stats()
    found, level = [], [root]
    while level:
        level = [pid for pid, one in stats.items() if one.parent in level]
        found += level
    return found


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except GONE:
        return ""


def cpu_seconds(pid: int) -> float:
    """User and system."""
    found = stat(pid)
    return found.cpu_seconds if found else 0.0


def pss_mb(pid: int) -> float:
    """Its own memory, and its part of what it shares."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except GONE:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def total_pss_mb(pids: Iterable[int]) -> float:
    return sum(map(pss_mb, pids))


class Peak:
    """The most memory that processes have together while the block runs. A look costs them about a millisecond."""

    EVERY_SECONDS = 0.25

    def __init__(self, pids: Callable[[], Iterable[int]]) -> None:
        self._pids = pids
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.mb = 0.0

    def _watch(self) -> None:
        while not self._over.wait(self.EVERY_SECONDS):
            self.mb = max(self.mb, total_pss_mb(self._pids()))

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        self.mb = max(self.mb, total_pss_mb(self._pids()))


class Used:
    """CPU seconds by pid since it was made."""

    def __init__(self, pids: Iterable[int]) -> None:
        self.since = time.monotonic()
        self._before = {pid: cpu_seconds(pid) for pid in pids}

    def seconds(self) -> dict[int, float]:
        return {pid: cpu_seconds(pid) - before for pid, before in self._before.items()}

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.since

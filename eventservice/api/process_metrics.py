"""CPU time, memory, open files and start time of the service's processes on this machine, read from /proc."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
LABELS = ("role", "pid")
# The places of values in /proc/<pid>/stat, counted behind the name of the command.
USER_TIME, SYSTEM_TIME, START_TIME, RESIDENT_PAGES = 11, 12, 19, 21


class ProcessState(NamedTuple):
    cpu_seconds: float
    resident_bytes: int
    open_files: int
    started_at: float


def collect_process_metrics(roles_by_pid: Mapping[int, str]) -> Iterator[Metric]:
    """Yield the metrics of these processes, without those that have ended or belong to another user."""
    states = {(role, str(pid)): state for pid, role in roles_by_pid.items() if (state := read_process(pid))}
    cpu = CounterMetricFamily(
        "eventservice_process_cpu_seconds", "CPU time of the process, user and system.", labels=LABELS
    )
    for labels, state in states.items():
        cpu.add_metric(labels, state.cpu_seconds)
    yield cpu
    for name, text, values in (
        ("resident_memory_bytes", "Resident memory of the process.", _pick(states, "resident_bytes")),
        ("open_fds", "Open file descriptors of the process.", _pick(states, "open_files")),
        ("start_time_seconds", "Start of the process, in Unix time.", _pick(states, "started_at")),
    ):
        gauge = GaugeMetricFamily(f"eventservice_process_{name}", text, labels=LABELS)
        for labels, value in values:
            gauge.add_metric(labels, value)
        yield gauge


def _pick(
    states: Mapping[tuple[str, str], ProcessState], name: str
) -> Iterable[tuple[tuple[str, str], float]]:
    return [(labels, getattr(state, name)) for labels, state in states.items()]


def read_process(pid: int) -> ProcessState | None:
    folder = Path(f"/proc/{pid}")
    try:
        values = (folder / "stat").read_text().rpartition(")")[2].split()
        open_files = len(os.listdir(folder / "fd"))  # noqa: PTH208 - the names are not needed
    except OSError:
        return None
    return ProcessState(
        (int(values[USER_TIME]) + int(values[SYSTEM_TIME])) / TICKS_PER_SECOND,
        int(values[RESIDENT_PAGES]) * resource.getpagesize(),
        open_files,
        _read_boot_time() + int(values[START_TIME]) / TICKS_PER_SECOND,
    )


@cache
def _read_boot_time() -> float:
    lines = Path("/proc/stat").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("btime "))

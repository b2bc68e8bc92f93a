"""CPU time, memory, open files and start time of the service's processes on this machine, read from /proc."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from eventservice.kernel.processes import ProcessState, read_process

LABELS = ("role", "pid")


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

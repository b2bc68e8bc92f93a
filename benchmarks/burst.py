"""Many calls that are due at one moment: how fast they are sent and recorded.

Measured beside it in turns: huey on Redis and on SQLite with the same work, and the database and the HTTP client alone.
"""

from __future__ import annotations

import argparse
import re
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.command_line import create_parser, parse_positive, run_program
from benchmarks.huey_peer import build_huey_peers
from benchmarks.limits import measure_database
from benchmarks.processes import BenchmarkError, CpuUsage, PeakMemory, read_total_pss_mb, wait_until
from benchmarks.report import Report, compute_ratio, log_progress, summarize_rounds
from benchmarks.system import (
    System,
    Target,
    Workspace,
    build_environment,
    rotate,
    start_agent,
    start_system,
    start_target,
)

SUBMITTED_PER_SECOND = 1_500  # the first estimate, by which the due time is chosen
LEAD_SECONDS = 2.0
SETTLE_SECONDS = 0.5
MAX_SUBMIT_ATTEMPTS = 4
WARM_UP_CALLS = 200

Measured = dict[str, Any]


def run_burst(system: System, target: Target, tenant: str, calls: int, label: str) -> Measured:
    """Run one burst on a running system. It may be repeated."""
    agent = system.agent
    label, due, duration = _submit_in_time(system, target, tenant, calls, label)
    last_event, attempts = agent("find_last_event_id"), agent("count_attempts", tenant=tenant)
    time.sleep(max(0.0, due - SETTLE_SECONDS - time.time()))
    usage = CpuUsage(system.list_cluster_pids())
    with PeakMemory(system.list_cluster_pids) as peak:
        requests = target.collect(f"/ok?{label}", calls, due - time.time() + 60 + calls / 100)
        wait_until(
            lambda: _count_ended(agent("summarize_progress", tenant=tenant, due=due)) == calls,
            "all calls have ended",
            60.0,
        )
    ended = agent("summarize_progress", tenant=tenant, due=due)
    system.wait_until_published()
    cpu = system.sum_by_role(usage.seconds())
    if ended["by_status"] != {"Succeeded": calls} or len({request.call for request in requests}) != calls:
        raise BenchmarkError(
            f"not every call succeeded exactly once: {ended['by_status']}, {len(requests)} requests"
        )
    events = agent("summarize_events", after=last_event)
    return {
        "per_second": calls / (ended["last"] - due),
        "sent_per_second": calls / (max(request.time for request in requests) - due),
        "first_request_ms": (min(request.time for request in requests) - due) * 1000,
        "submitted_per_second": calls / duration,
        "attempts": agent("count_attempts", tenant=tenant) - attempts,
        "events": events["events"],
        "event_lag_p50_ms": events["lag_ms"]["p50"],
        "event_lag_max_ms": events["lag_ms"]["max"],
        "peak_mb": peak.mb,
        "cpu_s_per_1000": {role: seconds * 1000 / calls for role, seconds in cpu.items() if role != "web"},
    }


def _submit_in_time(
    system: System, target: Target, tenant: str, calls: int, label: str
) -> tuple[str, float, float]:
    """Submit the calls before they are due, and return their label, their due time and the seconds that it took.

    On a busy machine this may take several attempts, each with more time.
    """
    for attempt in range(MAX_SUBMIT_ATTEMPTS):
        path = f"/ok?{label}"
        due = round(time.time() + LEAD_SECONDS + 2**attempt * calls / SUBMITTED_PER_SECOND, 3)
        url = target.build_url(path)
        duration = system.agent("submit_calls", tenant=tenant, url=url, count=calls, due=due)
        system.wait_until_published()
        if time.time() < due - SETTLE_SECONDS:
            return label, due, duration
        log_progress(f"{calls} calls could not be submitted in time; trying again")
        target.collect(path, calls, 60 + calls / 100)
        system.wait_until_published()
        label += "-again"
    raise BenchmarkError(f"{calls} calls could not be submitted and published before they were due")


def _count_ended(progress: dict[str, Any]) -> int:
    by_status: dict[str, int] = progress["by_status"]
    return sum(n for status, n in by_status.items() if status in ("Succeeded", "Failed", "Canceled"))


def measure_fresh_burst(workspace: Workspace, target: Target, calls: int, label: str) -> Measured:
    """Run a burst on a new system with an empty database, and measure its memory before and after."""
    database = workspace.create_database()
    with start_system(workspace, database, [target]) as system:
        tenant = system.agent("ensure_tenant", name="burst")["id"]
        # Imports, connections and prepared statements must not count.
        run_burst(system, target, tenant, min(calls, WARM_UP_CALLS), f"{label}-warm")
        idle = read_total_pss_mb(system.list_cluster_pids())
        measured = run_burst(system, target, tenant, calls, label)
        time.sleep(1.0)
        measured |= {"idle_mb": idle, "after_mb": read_total_pss_mb(system.list_cluster_pids())}
    workspace.delete_database(database)
    return measured


def measure_limits(workspace: Workspace, target: Target, calls: int, label: str) -> Measured:
    """Measure the database and the engine's HTTP client alone."""
    database = workspace.create_database()
    measured: Measured = dict(measure_database(workspace.folder, database))
    with start_agent(workspace, build_environment(database)) as agent:
        measured["posts"] = agent("measure_egress", url=target.build_url(f"/ok?{label}"), count=calls)
        target.collect(f"/ok?{label}", calls, 30.0)
    return measured


def measure(workspace: Workspace, options: argparse.Namespace, report: Report) -> None:
    calls = options.calls
    rounds: dict[str, list[Measured]] = defaultdict(list)
    with start_target(workspace) as target:
        candidates: list[tuple[str, Callable[[str], Measured]]] = [
            ("limits", partial(measure_limits, workspace, target, calls)),
            ("system", partial(measure_fresh_burst, workspace, target, calls)),
        ]
        if not options.no_peers:
            peers = build_huey_peers(workspace, options.peer_workers, report)
            candidates += [(peer.name, partial(peer.run_burst, target, calls)) for peer in peers]
        for number in range(options.rounds):
            for name, run in rotate(candidates, number):
                log_progress(f"round {number + 1} of {options.rounds}: {name}")
                rounds[name].append(run(f"{re.sub(r'[^a-zA-Z0-9]+', '-', name)}-{number}"))
    report.figures = {name: summarize_measured(measured) for name, measured in rounds.items()}
    _add_tables(report)


def summarize_measured(rounds: list[Measured]) -> dict[str, Any]:
    """Return the median and range of each figure over the rounds."""
    summary: dict[str, Any] = {}
    for name, first in rounds[0].items():
        values = [each[name] for each in rounds]
        if isinstance(first, dict):
            summary[name] = summarize_measured(values)
        else:
            summary[name] = summarize_rounds(values, 3 if isinstance(first, float) and first < 10 else 1)
    return summary


def _add_tables(report: Report) -> None:
    figures = report.figures
    ours = figures["system"]
    rate = ours["per_second"]["median"]
    ratios = {}
    rows = [["Event Service", ours["per_second"], "1×", ours["peak_mb"], "full record"]]
    for name in [name for name in figures if name.startswith("huey")]:
        peer = figures[name]
        ratios[name] = compute_ratio(rate, peer["per_second"]["median"])
        rows.append([name, peer["per_second"], f"{ratios[name]}×", peer["peak_mb"], "no outcome"])
    figures["ratio_to"] = ratios
    report.add_table(
        f"Burst of {report.options['calls']:,}: calls/s, median (min–max)",
        ["", "calls/s", "ours is", "peak MB", "stores"],
        rows,
    )
    report.add_table(
        "Event Service",
        ["", "median (min–max)"],
        [
            *([name.replace("_", " "), ours[name]] for name in ours if name != "cpu_s_per_1000"),
            *([f"CPU s per 1,000: {role}", value] for role, value in ours["cpu_s_per_1000"].items()),
        ],
    )
    report.add_table(
        "Each layer alone", ["", "per second"], [[name, value] for name, value in figures["limits"].items()]
    )
    report.add_note(
        "Rates count from T0 to the last recorded outcome; a peer's to its last request at the target."
    )


def parse_workers(text: str) -> list[tuple[int, int]]:
    pairs = (part.split("x") for part in text.split(","))
    return [(parse_positive(consumers), parse_positive(threads)) for consumers, threads in pairs]


def build_parser() -> argparse.ArgumentParser:
    parser = create_parser("burst", __doc__, rounds=5)
    parser.add_argument(
        "--calls", type=parse_positive, default=10_000, help="calls in a burst (default: %(default)s)"
    )
    parser.add_argument("--no-peers", action="store_true", help="do not measure huey")
    parser.add_argument(
        "--peer-workers",
        type=parse_workers,
        default=[(2, 8), (4, 4)],
        metavar="CxT,…",
        help="huey's consumer processes and the threads of each (default: 2x8,4x4)",
    )
    return parser


if __name__ == "__main__":
    run_program(build_parser(), "burst", measure)

"""How much calls that wait for next year slow down those that are due now.

There are two databases: one is empty, in the other more and more calls are pending. The same burst and the same steady
load run on both in turns, with the same history of finished calls. The pending calls are submitted in batches while the
system is stopped, and their events are marked as published; otherwise they would occupy the dispatcher for minutes.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from benchmarks.burst import WARM_UP_CALLS, run_burst
from benchmarks.command_line import create_parser, parse_positive, run_program
from benchmarks.lateness import run_steady_load
from benchmarks.report import Report, compute_ratio, log_progress, summarize_rounds
from benchmarks.system import (
    Target,
    Workspace,
    build_environment,
    rotate,
    start_agent,
    start_system,
    start_target,
)

YEAR_SECONDS = 365 * 86_400.0
CHUNK_SIZE = 50_000
NAMES = ("empty", "pending")

Measured = dict[str, Any]


def add_pending_calls(workspace: Workspace, database: dict[str, str], url: str, count: int) -> float:
    """Submit calls that are due in the year after next month, and return the seconds that it took."""
    started = time.monotonic()
    with start_agent(workspace, build_environment(database)) as agent:
        tenant = agent("ensure_tenant", name="later", limits=False)["id"]
        for first in range(0, count, CHUNK_SIZE):
            size = min(CHUNK_SIZE, count - first)
            due = time.time() + YEAR_SECONDS / 12 + first
            agent("submit_calls", tenant=tenant, url=url, count=size, due=due, over=YEAR_SECONDS)
        agent("mark_all_published")
        agent("checkpoint")
    return time.monotonic() - started


def measure_once(
    workspace: Workspace, database: dict[str, str], target: Target, options: argparse.Namespace, label: str
) -> Measured:
    """Run the burst and the steady load on a new system."""
    with start_system(workspace, database, [target]) as system:
        tenant = system.agent("ensure_tenant", name="now", limits=False)
        if options.calls > WARM_UP_CALLS:
            run_burst(system, target, tenant["id"], WARM_UP_CALLS, f"{label}-warm")
        burst = run_burst(system, target, tenant["id"], options.calls, label)
        load = run_steady_load(system, target, tenant, options.rate, options.seconds, f"{label}-steady")
        return {
            "per_second": burst["per_second"],
            "peak_mb": burst["peak_mb"],
            "lateness_p50_ms": load["lateness_ms"]["p50"],
            "lateness_p99_ms": load["lateness_ms"]["p99"],
        }


def measure(workspace: Workspace, options: argparse.Namespace, report: Report) -> None:
    databases = {name: workspace.create_database() for name in NAMES}
    rows = []
    with start_target(workspace) as target:
        for name in NAMES:
            # Neither database may be the one with new tables.
            measure_once(workspace, databases[name], target, options, f"{name}-first")
        pending = 0
        for level in options.pending:
            seconds = add_pending_calls(
                workspace, databases["pending"], target.build_url("/ok"), level - pending
            )
            log_progress(f"{level:,} pending: {level - pending:,} more in {seconds:.0f} s")
            pending = level
            rounds: dict[str, list[Measured]] = {name: [] for name in NAMES}
            for number in range(options.rounds):
                for name in rotate(NAMES, number):
                    log_progress(f"{level:,} pending, round {number + 1} of {options.rounds}: {name}")
                    label = f"{name}-{level}-{number}"
                    rounds[name].append(measure_once(workspace, databases[name], target, options, label))
            figures, level_rows = _summarize_level(rounds)
            report.figures[str(level)] = figures
            rows += [[f"{level:,}" if not number else "", *row] for number, row in enumerate(level_rows)]
    report.add_table(
        "With so many calls pending: median of the rounds (min–max)",
        ["pending", "", "empty database", "with pending", "ratio"],
        rows,
    )


def _summarize_level(rounds: dict[str, list[Measured]]) -> tuple[dict[str, Any], list[list[Any]]]:
    figures: dict[str, Any] = {}
    rows = []
    for key in rounds["empty"][0]:
        empty, full = (summarize_rounds([each[key] for each in rounds[name]], 2) for name in NAMES)
        ratio = compute_ratio(full["median"], empty["median"])
        figures[key] = {"empty": empty, "pending": full, "ratio": ratio}
        rows.append([key.replace("_", " "), empty, full, ratio])
    return figures, rows


def parse_levels(text: str) -> list[int]:
    levels = [int(part) for part in text.split(",")]
    if levels != sorted(levels) or levels[0] < 1:
        raise ValueError(text)
    return levels


def build_parser() -> argparse.ArgumentParser:
    parser = create_parser("pending", __doc__, rounds=3)
    parser.add_argument(
        "--pending",
        type=parse_levels,
        default=[1_000, 100_000, 1_000_000],
        metavar="N,N,…",
        help="numbers of pending calls, in rising order (default: 1000,100000,1000000)",
    )
    parser.add_argument(
        "--calls", type=parse_positive, default=10_000, help="calls in a burst (default: %(default)s)"
    )
    parser.add_argument(
        "--rate",
        type=float,
        default=100.0,
        help="submissions per second of the steady load (default: %(default)g)",
    )
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="length of the steady load (default: %(default)g)"
    )
    return parser


if __name__ == "__main__":
    run_program(build_parser(), "pending", measure)

"""What many calls that wait for next year cost those that are due now.

Two databases: one stays empty but for what is measured, in the other more and more calls are pending. The same burst
and the same steady load run on both in turns, with the same history behind them. The pending calls are made with the
public `submit`, in batches, while the system is stopped; their events are marked as published, or the dispatcher
would be busy with them for minutes.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from benchmarks import harness
from benchmarks.burst import burst
from benchmarks.figures import Report, ratio, say, spread
from benchmarks.harness import Stage, Target
from benchmarks.lateness import steady

YEAR = 365 * 86_400.0
CHUNK = 50_000
WARM_CALLS = 200
NAMES = ("empty", "pending")

Measured = dict[str, Any]


def fill(stage: Stage, database: dict[str, str], url: str, count: int) -> float:
    """More calls, due throughout the year after next month. How many seconds it took."""
    began = time.monotonic()
    with harness.agent(stage.env(database), stage.folder) as agent:
        tenant = agent("tenant", name="later", limits=False)["id"]
        for first in range(0, count, CHUNK):
            due = time.time() + YEAR / 12 + first
            agent("submit_calls", tenant=tenant, url=url, count=min(CHUNK, count - first), due=due, over=YEAR)
        agent("publish_all")
        agent("checkpoint")
    return time.monotonic() - began


def once(
    stage: Stage, database: dict[str, str], target: Target, options: argparse.Namespace, label: str
) -> Measured:
    """Both measurements on a system started for them."""
    with harness.system(stage, database, [target]) as system:
        tenant = system.agent("tenant", name="now", limits=False)
        if options.calls > WARM_CALLS:
            burst(system, target, tenant["id"], WARM_CALLS, f"{label}-warm")
        drained = burst(system, target, tenant["id"], options.calls, label)
        late = steady(system, target, tenant, options.rate, options.seconds, f"{label}-steady")["lateness_ms"]
        return {
            "per_second": drained["per_second"],
            "peak_mb": drained["peak_mb"],
            "lateness_p50_ms": late["p50"],
            "lateness_p99_ms": late["p99"],
        }


def measure(stage: Stage, options: argparse.Namespace, report: Report) -> None:
    databases = {name: stage.database() for name in NAMES}
    rows = []
    with harness.target(stage) as target:
        for name in NAMES:
            # So that neither database is ever the one whose tables are new.
            once(stage, databases[name], target, options, f"{name}-first")
        pending = 0
        for level in options.pending:
            took = fill(stage, databases["pending"], target.url("/ok"), level - pending)
            say(f"{level:,} pending: {level - pending:,} more in {took:.0f} s")
            pending = level
            found: dict[str, list[Measured]] = {name: [] for name in NAMES}
            for number in range(options.rounds):
                for name in harness.turns(NAMES, number):
                    say(f"{level:,} pending, round {number + 1} of {options.rounds}: {name}")
                    found[name].append(
                        once(stage, databases[name], target, options, f"{name}-{level}-{number}")
                    )
            figures, level_rows = _level(found)
            report.figures[str(level)] = figures
            rows += [[f"{level:,}" if not number else "", *row] for number, row in enumerate(level_rows)]
    report.table(
        "With so many calls pending: median of the rounds (least–most)",
        ["pending", "", "empty store", "with pending", "ratio"],
        rows,
    )


def _level(found: dict[str, list[Measured]]) -> tuple[dict[str, Any], list[list[Any]]]:
    figures: dict[str, Any] = {}
    rows = []
    for what in found["empty"][0]:
        empty, full = (spread([one[what] for one in found[name]], 2) for name in NAMES)
        times = ratio(full["median"], empty["median"])
        figures[what] = {"empty": empty, "pending": full, "ratio": times}
        rows.append([what.replace("_", " "), empty, full, times])
    return figures, rows


def levels(text: str) -> list[int]:
    found = [int(part) for part in text.split(",")]
    if found != sorted(found) or found[0] < 1:
        raise ValueError(text)
    return found


def arguments() -> argparse.ArgumentParser:
    made = harness.parser("pending", __doc__, rounds=3)
    made.add_argument("--pending", type=levels, default=[1_000, 100_000, 1_000_000], metavar="N,N,…")
    made.add_argument("--calls", type=harness.positive, default=10_000)
    made.add_argument("--rate", type=float, default=100.0)
    made.add_argument("--seconds", type=float, default=20.0)
    return made


if __name__ == "__main__":
    harness.run_program(arguments(), "pending", measure)

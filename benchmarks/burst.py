"""Many calls due at one moment: how fast they are drained, with their full record kept.

Beside it, taking turns with it: huey on Redis and on SQLite at the same work, and what database and HTTP can do alone.
"""

from __future__ import annotations

import argparse
import re
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks import harness, processes
from benchmarks.figures import Report, ratio, say, spread
from benchmarks.harness import BenchmarkError, Stage, System, Target, until
from benchmarks.limits import database_rates
from benchmarks.peers import hueys

SUBMITTED_PER_SECOND = 1_500  # at first: by this and the lead the due time is set
LEAD_SECONDS = 2.0
SETTLE_SECONDS = 0.5

Measured = dict[str, Any]


def burst(system: System, target: Target, tenant: str, calls: int, label: str) -> Measured:
    """One burst on a system that runs: it may be repeated."""
    agent = system.agent
    label, due, took = _submitted_in_time(system, target, tenant, calls, label)
    mark, logged = agent("last_event"), agent("attempts", tenant=tenant)
    time.sleep(max(0.0, due - SETTLE_SECONDS - time.time()))
    used = processes.Used(system.cluster())
    with processes.Peak(system.cluster) as peak:
        sent = target.collect(f"/ok?{label}", calls, due - time.time() + 60 + calls / 100)
        until(
            lambda: _ended(agent("progress", tenant=tenant, due=due)) == calls, "all calls have ended", 60.0
        )
    ended = agent("progress", tenant=tenant, due=due)
    system.until_quiet()
    cpu = system.by_role(used.seconds())
    if ended["by_status"] != {"Succeeded": calls} or len({one.call for one in sent}) != calls:
        raise BenchmarkError(f"not every call succeeded once: {ended['by_status']}, {len(sent)} requests")
    events = agent("events", after=mark)
    return {
        "per_second": calls / (ended["last"] - due),
        "sent_per_second": calls / (max(one.time for one in sent) - due),
        "first_request_ms": (min(one.time for one in sent) - due) * 1000,
        "submitted_per_second": calls / took,
        "attempts": agent("attempts", tenant=tenant) - logged,
        "events": events["events"],
        "event_lag_p50_ms": events["lag_ms"]["p50"],
        "event_lag_max_ms": events["lag_ms"]["max"],
        "peak_mb": peak.mb,
        "cpu_s_per_1000": {role: seconds * 1000 / calls for role, seconds in cpu.items() if role != "web"},
    }


def _submitted_in_time(
    system: System, target: Target, tenant: str, calls: int, label: str
) -> tuple[str, float, float]:
    """Under which label, when they are due, and how long it took. On a machine that is busy it may take a second try."""
    for slower in range(4):
        path = f"/ok?{label}"
        due = round(time.time() + LEAD_SECONDS + 2**slower * calls / SUBMITTED_PER_SECOND, 3)
        took = system.agent("submit_calls", tenant=tenant, url=target.url(path), count=calls, due=due)
        system.until_quiet()
        if time.time() < due - SETTLE_SECONDS:
            return label, due, took
        say(f"{calls} calls could not be submitted in time: once more")
        target.collect(path, calls, 60 + calls / 100)
        system.until_quiet()
        label += "-again"
    raise BenchmarkError(f"{calls} calls could not be submitted and published before they were due")


def _ended(progress: dict[str, Any]) -> int:
    by_status: dict[str, int] = progress["by_status"]
    return sum(n for status, n in by_status.items() if status in ("Succeeded", "Failed", "Canceled"))


def fresh_burst(stage: Stage, target: Target, calls: int, label: str) -> Measured:
    """On a system just started with an empty database; with its memory before, at the most, and after."""
    database = stage.database()
    with harness.system(stage, database, [target]) as system:
        tenant = system.agent("tenant", name="burst")["id"]
        # What is done for the first time (imports, connections, statements) is done before.
        burst(system, target, tenant, min(calls, 200), f"{label}-warm")
        idle = processes.total_pss_mb(system.cluster())
        measured = burst(system, target, tenant, calls, label)
        time.sleep(1.0)
        measured |= {"idle_mb": idle, "after_mb": processes.total_pss_mb(system.cluster())}
    stage.forget(database)
    return measured


def limits(stage: Stage, target: Target, calls: int, label: str) -> Measured:
    database = stage.database()
    found: Measured = dict(database_rates(stage.folder, database))
    with harness.agent(stage.env(database), stage.folder) as agent:
        url = target.url(f"/ok?{label}")
        found["posts"] = agent("egress_rate", url=url, count=calls)
        target.collect(f"/ok?{label}", calls, 30.0)
    return found


def measure(stage: Stage, options: argparse.Namespace, report: Report) -> None:
    calls = options.calls
    rounds: dict[str, list[Measured]] = defaultdict(list)
    with harness.target(stage) as target:
        things: list[tuple[str, Callable[[str], Measured]]] = [
            ("limits", partial(limits, stage, target, calls)),
            ("system", partial(fresh_burst, stage, target, calls)),
        ]
        if not options.no_peers:
            peers = hueys(stage, options.peer_workers, report)
            things += [(peer.name, partial(peer.burst, target, calls)) for peer in peers]
        for number in range(options.rounds):
            for name, run in harness.turns(things, number):
                say(f"round {number + 1} of {options.rounds}: {name}")
                rounds[name].append(run(f"{re.sub(r'[^a-zA-Z0-9]+', '-', name)}-{number}"))
    report.figures = {name: summed(found) for name, found in rounds.items()}
    _show(report)


def summed(rounds: list[Measured]) -> dict[str, Any]:
    """Round by round figures to their medians."""
    found: dict[str, Any] = {}
    for name, first in rounds[0].items():
        values = [one[name] for one in rounds]
        if isinstance(first, dict):
            found[name] = summed(values)
        else:
            found[name] = spread(values, 3 if isinstance(first, float) and first < 10 else 1)
    return found


def _show(report: Report) -> None:
    figures = report.figures
    ours = figures["system"]
    rate = ours["per_second"]["median"]
    ratios = {}
    rows = [["Event Service", ours["per_second"], "1×", ours["peak_mb"], "full record"]]
    for name in [name for name in figures if name.startswith("huey")]:
        ratios[name] = ratio(rate, figures[name]["per_second"]["median"])
        rows.append(
            [name, figures[name]["per_second"], f"{ratios[name]}×", figures[name]["peak_mb"], "no outcome"]
        )
    figures["ratio_to"] = ratios
    report.table(
        f"Burst of {report.options['calls']:,}: calls/s, median (least–most)",
        ["", "calls/s", "ours is", "peak MB", "keeps"],
        rows,
    )
    report.table(
        "Event Service",
        ["", "median (least–most)"],
        [
            *([name.replace("_", " "), ours[name]] for name in ours if name != "cpu_s_per_1000"),
            *([f"CPU s per 1,000: {role}", value] for role, value in ours["cpu_s_per_1000"].items()),
        ],
    )
    report.table("Alone", ["", "per second"], [[name, value] for name, value in figures["limits"].items()])
    report.note(
        "Rates count from T0 to the last recorded outcome; a peer's to its last request at the target."
    )


def workers(text: str) -> list[tuple[int, int]]:
    return [
        (harness.positive(c), harness.positive(t)) for c, t in (part.split("x") for part in text.split(","))
    ]


def arguments() -> argparse.ArgumentParser:
    made = harness.parser("burst", __doc__, rounds=5)
    made.add_argument("--calls", type=harness.positive, default=10_000)
    made.add_argument("--no-peers", action="store_true", help="without huey")
    made.add_argument(
        "--peer-workers",
        type=workers,
        default=[(2, 8), (4, 4)],
        metavar="CxT,…",
        help="huey's consumer processes and threads of each (2x8,4x4)",
    )
    return made


if __name__ == "__main__":
    harness.run_program(arguments(), "burst", measure)

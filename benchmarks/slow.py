"""Thousands of calls in flight to targets that take long: what other tenants' quick calls feel of it.

Slow calls go to hosts of their own (loopback addresses, each with a target), as many as one host may have in flight;
quick ones come steadily over REST before, while the slow ones are started, while they hang, and while they end.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
import urllib.request
from typing import Any

from benchmarks import harness, processes
from benchmarks.figures import Report, distribution, ratio, say, spread
from benchmarks.harness import BenchmarkError, Sent, Stage, System, Target
from benchmarks.lateness import CONNECTIONS, job, lateness_ms, submission, told
from benchmarks.loader import Load

PER_HOST = 5_000  # ENGINE_PER_HOST, as it is shipped
AFTER_SECONDS = 1.5
PHASES = ("before", "starting", "in flight", "ending")

Measured = dict[str, Any]


def in_flight(targets: list[Target]) -> int:
    """The most connections that the slow targets have had at once."""
    most = 0
    for one in targets:
        with urllib.request.urlopen(one.url("/stats"), timeout=10) as answer:
            most += int(json.load(answer)["most_connections"])
    return most


def once(
    system: System, quick: Target, slow: list[Target], tenants: list[str], quick_tenant: dict[str, str],
    options: argparse.Namespace, label: str,
) -> Measured:  # fmt: skip
    calls, agent = options.calls, system.agent
    lead = options.before + calls / 1_500
    due = round(time.time() + lead + 1.0, 3)
    seconds = lead + 1.0 + options.delay + calls / 1_000 + AFTER_SECONDS
    path, slow_path = f"/ok?{label}", f"/delay/{options.delay:g}?{label}"
    shares = [calls // len(slow) + (number < calls % len(slow)) for number in range(len(slow))]
    for one, tenant, share in zip(slow, tenants, shares, strict=True):
        agent(
            "submit_calls",
            tenant=tenant,
            url=one.url(slow_path),
            count=share,
            due=due,
            timeout=60 + options.delay,
        )
    system.until_quiet()
    count = int(options.rate * seconds)
    work = job(
        system, quick_tenant, submission(quick.url(path)), count, connections=CONNECTIONS, rate=options.rate
    )
    with Load(work) as under_way, processes.Peak(system.cluster) as peak:
        sent = quick.collect(path, count, seconds + 60)
        answered = under_way.results(30)
        hanging = [
            hit
            for one, share in zip(slow, shares, strict=True)
            for hit in one.collect(slow_path, share, 60 + options.delay + calls / 200)
        ]
    _until_succeeded(system, tenants, due, calls, options.delay)
    phases = _phases(told(answered), sent, hanging, due, options.delay)
    times = sorted(one.time for one in hanging)
    return {
        "lateness_ms": {phase: distribution(late, 2) for phase, late in phases.items()},
        "started_in_s": times[-1] - due,
        "started_per_second": calls / (times[-1] - due),
        "all_in_flight_at_once": times[-1] < times[0] + options.delay,
        "peak_mb": peak.mb,
    }


def _until_succeeded(system: System, tenants: list[str], due: float, calls: int, delay: float) -> None:
    def stand() -> dict[str, int]:
        found: dict[str, int] = {}
        for tenant in tenants:
            for status, n in system.agent("progress", tenant=tenant, due=due)["by_status"].items():
                found[status] = found.get(status, 0) + n
        return found

    ends = ("Succeeded", "Failed", "Canceled")
    harness.until(
        lambda: sum(n for status, n in stand().items() if status in ends) == calls,
        "the slow calls end",
        120 + delay,
        0.5,
    )
    if stand() != {"Succeeded": calls}:
        raise BenchmarkError(f"not every slow call succeeded: {stand()}")


def _phases(
    due: dict[str, tuple[float, float]], sent: list[Sent], slow: list[Sent], begin: float, delay: float
) -> dict[str, list[float]]:
    times = [one.time for one in slow]
    limits = {
        "before": (0.0, begin),
        "starting": (begin, max(times)),
        "in flight": (max(times), min(times) + delay),
        "ending": (min(times) + delay, max(times) + delay + 0.5),
    }
    return {
        phase: lateness_ms({call: at for call, at in due.items() if first <= at[0] < last}, sent)
        for phase, (first, last) in limits.items()
    }


def measure(stage: Stage, options: argparse.Namespace, report: Report) -> None:
    if options.stretch:
        options.calls = report.options["calls"] = 20_000
    hosts = -(-options.calls // PER_HOST)
    rounds = []
    with contextlib.ExitStack() as stack:
        quick = stack.enter_context(harness.target(stage))
        slow = [
            stack.enter_context(harness.target(stage, f"127.0.0.{10 + number}")) for number in range(hosts)
        ]
        system = stack.enter_context(harness.system(stage, stage.database(), [quick, *slow]))
        tenants = [
            system.agent("tenant", name=f"slow-{n}", max_in_flight=PER_HOST)["id"] for n in range(hosts)
        ]
        quick_tenant = system.agent("tenant", name="quick")
        for number in range(options.rounds):
            say(f"round {number + 1} of {options.rounds}: {options.calls:,} calls of {options.delay:g} s")
            rounds.append(once(system, quick, slow, tenants, quick_tenant, options, f"slow-{number}"))
            system.until_quiet()
        report.figures["most_connections"] = in_flight(slow)
    _sum_up(rounds, options, report)


def _sum_up(rounds: list[Measured], options: argparse.Namespace, report: Report) -> None:
    figures = report.figures
    for phase in PHASES:
        figures[phase] = {
            share: spread([one["lateness_ms"][phase][share] for one in rounds], 2)
            for share in ("p50", "p99", "max")
        }
        figures[phase]["count"] = sum(one["lateness_ms"][phase]["count"] for one in rounds)
    for name in ("started_in_s", "started_per_second", "peak_mb"):
        figures[name] = spread([one[name] for one in rounds], 2)
    figures["all_in_flight_at_once"] = all(one["all_in_flight_at_once"] for one in rounds)
    figures["p50_ratio_in_flight"] = ratio(
        figures["in flight"]["p50"]["median"], figures["before"]["p50"]["median"]
    )
    report.table(
        f"Quick calls beside {options.calls:,} that take {options.delay:g} s: lateness, ms, median (least–most)",
        ["", "p50", "p99", "max", "calls"],
        [[phase, *(figures[phase][share] for share in ("p50", "p99", "max", "count"))] for phase in PHASES],
    )
    report.table(
        "The slow ones",
        ["", ""],
        [
            ["most connections at once", figures["most_connections"]],
            ["all had been sent before the first was answered", figures["all_in_flight_at_once"]],
            ["seconds until all had been sent", figures["started_in_s"]],
            ["peak memory (PSS) of the cluster, MB", figures["peak_mb"]],
        ],
    )
    if not figures["all_in_flight_at_once"]:
        report.note(
            "The first slow calls were answered before the last were sent: fewer than all hung at once."
        )


def arguments() -> argparse.ArgumentParser:
    made = harness.parser("slow", __doc__, rounds=3)
    made.add_argument("--calls", type=harness.positive, default=5_000)
    made.add_argument("--stretch", action="store_true", help="20,000 calls")
    made.add_argument("--delay", type=float, default=10.0, help="seconds that a slow target takes")
    made.add_argument("--rate", type=float, default=50.0, help="quick calls a second")
    made.add_argument(
        "--before", type=float, default=8.0, help="seconds of quick calls before the slow ones are due"
    )
    return made


if __name__ == "__main__":
    harness.run_program(arguments(), "slow", measure)

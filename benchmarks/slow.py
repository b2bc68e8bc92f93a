"""Thousands of calls in flight to slow targets: how much they delay another tenant's quick calls.

The slow calls go to several loopback addresses with a mock target each, and to each as many as one host may have in
flight. Quick calls are submitted at a steady rate over REST before the slow ones, while those are started, while they
wait for their responses, and while they end.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
import urllib.request
from collections import Counter
from typing import Any

from benchmarks.command_line import create_parser, parse_positive, run_program
from benchmarks.lateness import (
    CONNECTIONS,
    Accepted,
    build_job,
    build_submission,
    compute_lateness_ms,
    parse_accepted,
)
from benchmarks.load_generator import LoadProcess
from benchmarks.processes import BenchmarkError, PeakMemory, wait_until
from benchmarks.report import (
    Report,
    compute_ratio,
    log_progress,
    summarize_distribution,
    summarize_rounds,
)
from benchmarks.system import ReceivedRequest, System, Target, Workspace, start_system, start_target

CALLS_PER_HOST = 5_000  # the default of ENGINE_PER_HOST
STRETCH_CALLS = 20_000
SUBMITTED_PER_SECOND = 1_500  # an estimate, by which the due time is chosen
AFTER_SECONDS = 1.5
PHASES = ("before", "starting", "in flight", "ending")
ENDED = ("Succeeded", "Failed", "Canceled")

Measured = dict[str, Any]


def count_max_connections(targets: list[Target]) -> int:
    """Return the sum of the most connections that each target had open at once."""
    total = 0
    for target in targets:
        with urllib.request.urlopen(target.build_url("/stats"), timeout=10) as response:
            total += int(json.load(response)["most_connections"])
    return total


def measure_once(
    system: System, quick: Target, slow: list[Target], slow_tenants: list[str], quick_tenant: dict[str, str],
    options: argparse.Namespace, label: str,
) -> Measured:  # fmt: skip
    """Run the slow calls once, with quick calls before, beside and after them."""
    calls = options.calls
    lead = options.before + calls / SUBMITTED_PER_SECOND
    due = round(time.time() + lead + 1.0, 3)
    seconds = lead + 1.0 + options.delay + calls / 1_000 + AFTER_SECONDS
    path, slow_path = f"/ok?{label}", f"/delay/{options.delay:g}?{label}"
    shares = [calls // len(slow) + (number < calls % len(slow)) for number in range(len(slow))]
    for target, tenant, share in zip(slow, slow_tenants, shares, strict=True):
        url, timeout = target.build_url(slow_path), 60 + options.delay
        system.agent("submit_calls", tenant=tenant, url=url, count=share, due=due, timeout=timeout)
    system.wait_until_published()
    count = int(options.rate * seconds)
    body = build_submission(quick.build_url(path))
    job = build_job(system, quick_tenant, body, count, connections=CONNECTIONS, rate=options.rate)
    with LoadProcess(job) as process, PeakMemory(system.list_cluster_pids) as peak:
        quick_requests = quick.collect(path, count, seconds + 60)
        responses = process.wait(30)
        slow_requests = [
            request
            for target, share in zip(slow, shares, strict=True)
            for request in target.collect(slow_path, share, 60 + options.delay + calls / 200)
        ]
    _wait_until_succeeded(system, slow_tenants, due, calls, options.delay)
    phases = _split_by_phase(parse_accepted(responses), quick_requests, slow_requests, due, options.delay)
    times = sorted(request.time for request in slow_requests)
    return {
        "lateness_ms": {phase: summarize_distribution(late, 2) for phase, late in phases.items()},
        "started_in_s": times[-1] - due,
        "started_per_second": calls / (times[-1] - due),
        "all_in_flight_at_once": times[-1] < times[0] + options.delay,
        "peak_mb": peak.mb,
    }


def _wait_until_succeeded(system: System, tenants: list[str], due: float, calls: int, delay: float) -> None:
    def count_by_status() -> Counter[str]:
        counts: Counter[str] = Counter()
        for tenant in tenants:
            counts.update(system.agent("summarize_progress", tenant=tenant, due=due)["by_status"])
        return counts

    wait_until(
        lambda: sum(n for status, n in count_by_status().items() if status in ENDED) == calls,
        "the slow calls end",
        120 + delay,
        0.5,
    )
    counts = count_by_status()
    if counts != {"Succeeded": calls}:
        raise BenchmarkError(f"not every slow call succeeded: {dict(counts)}")


def _split_by_phase(
    accepted: dict[str, Accepted],
    quick: list[ReceivedRequest],
    slow: list[ReceivedRequest],
    slow_due: float,
    delay: float,
) -> dict[str, list[float]]:
    """Return the lateness of the quick calls by the phase in which they were due."""
    times = [request.time for request in slow]
    limits = {
        "before": (0.0, slow_due),
        "starting": (slow_due, max(times)),
        "in flight": (max(times), min(times) + delay),
        "ending": (min(times) + delay, max(times) + delay + 0.5),
    }
    return {
        phase: compute_lateness_ms(
            {call: promise for call, promise in accepted.items() if first <= promise.due < last}, quick
        )
        for phase, (first, last) in limits.items()
    }


def measure(workspace: Workspace, options: argparse.Namespace, report: Report) -> None:
    if options.stretch:
        options.calls = report.options["calls"] = STRETCH_CALLS
    hosts = -(-options.calls // CALLS_PER_HOST)
    rounds = []
    with contextlib.ExitStack() as stack:
        quick = stack.enter_context(start_target(workspace))
        slow = [
            stack.enter_context(start_target(workspace, f"127.0.0.{10 + number}")) for number in range(hosts)
        ]
        system = stack.enter_context(start_system(workspace, workspace.create_database(), [quick, *slow]))
        slow_tenants = [
            system.agent("ensure_tenant", name=f"slow-{number}", max_in_flight=CALLS_PER_HOST)["id"]
            for number in range(hosts)
        ]
        quick_tenant = system.agent("ensure_tenant", name="quick")
        for number in range(options.rounds):
            log_progress(
                f"round {number + 1} of {options.rounds}: {options.calls:,} calls of {options.delay:g} s"
            )
            label = f"slow-{number}"
            rounds.append(measure_once(system, quick, slow, slow_tenants, quick_tenant, options, label))
            system.wait_until_published()
        report.figures["most_connections"] = count_max_connections(slow)
    _add_figures(rounds, options, report)


def _add_figures(rounds: list[Measured], options: argparse.Namespace, report: Report) -> None:
    figures = report.figures
    for phase in PHASES:
        figures[phase] = {
            key: summarize_rounds([each["lateness_ms"][phase][key] for each in rounds], 2)
            for key in ("p50", "p99", "max")
        }
        figures[phase]["count"] = sum(each["lateness_ms"][phase]["count"] for each in rounds)
    for name in ("started_in_s", "started_per_second", "peak_mb"):
        figures[name] = summarize_rounds([each[name] for each in rounds], 2)
    figures["all_in_flight_at_once"] = all(each["all_in_flight_at_once"] for each in rounds)
    figures["p50_ratio_in_flight"] = compute_ratio(
        figures["in flight"]["p50"]["median"], figures["before"]["p50"]["median"]
    )
    report.add_table(
        f"Quick calls beside {options.calls:,} that take {options.delay:g} s: lateness, ms, median (min–max)",
        ["", "p50", "p99", "max", "calls"],
        [[phase, *(figures[phase][key] for key in ("p50", "p99", "max", "count"))] for phase in PHASES],
    )
    report.add_table(
        "The slow calls",
        ["", ""],
        [
            ["most connections at once", figures["most_connections"]],
            ["all were sent before the first was answered", figures["all_in_flight_at_once"]],
            ["seconds until all were sent", figures["started_in_s"]],
            ["peak memory (PSS) of the cluster, MB", figures["peak_mb"]],
        ],
    )
    if not figures["all_in_flight_at_once"]:
        report.add_note(
            "The first slow calls were answered before the last were sent: they were not all in flight at once."
        )


def build_parser() -> argparse.ArgumentParser:
    parser = create_parser("slow", __doc__, rounds=3)
    parser.add_argument(
        "--calls", type=parse_positive, default=5_000, help="slow calls (default: %(default)s)"
    )
    parser.add_argument("--stretch", action="store_true", help=f"run {STRETCH_CALLS:,} slow calls")
    parser.add_argument(
        "--delay",
        type=float,
        default=10.0,
        help="seconds until a slow target responds (default: %(default)g)",
    )
    parser.add_argument(
        "--rate", type=float, default=50.0, help="quick calls per second (default: %(default)g)"
    )
    parser.add_argument(
        "--before",
        type=float,
        default=8.0,
        help="seconds of quick calls before the slow ones are due (default: %(default)g)",
    )
    return parser


if __name__ == "__main__":
    run_program(build_parser(), "slow", measure)

"""How late calls are sent under a steady load over REST, and how soon a call on an idle system is sent."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from benchmarks.command_line import create_parser, parse_positive, run_program
from benchmarks.load_generator import LoadJob, LoadProcess, LoadResponse, count_statuses, run_load
from benchmarks.processes import BenchmarkError
from benchmarks.report import Report, log_progress, summarize_distribution, summarize_rounds
from benchmarks.system import ReceivedRequest, System, Target, Workspace, start_system, start_target

CONNECTIONS = 8

Measured = dict[str, Any]


class Accepted(NamedTuple):
    """What a 202 promised: the due time, and when the client had the answer. In seconds since 1970."""

    due: float
    answered: float


def build_submission(url: str, **more: Any) -> str:
    """Return the JSON body of a submission."""
    return json.dumps(
        {"name": "benchmark", "requestSpec": {"method": "POST", "url": url, "body": "y" * 200}, **more}
    )


def build_job(system: System, tenant: dict[str, str], body: str, count: int, **more: Any) -> LoadJob:
    """Return a job that sends this submission `count` times."""
    path = f"/api/v1/tenants/{tenant['id']}/service-calls"
    headers = {"Authorization": f"Bearer {tenant['key']}"}
    return LoadJob(system.port, path, body, headers=headers, count=count, **more)


def parse_accepted(responses: Sequence[LoadResponse]) -> dict[str, Accepted]:
    """Return the promise of each call by its id. Raise BenchmarkError if a submission was refused."""
    refused = [response for response in responses if response.status != 202]
    if refused:
        statuses = count_statuses(refused)
        raise BenchmarkError(f"submissions were refused: {statuses}; {refused[0].body[:300]}")
    accepted = {}
    for response in responses:
        call = json.loads(response.body)
        due = datetime.fromisoformat(call["dueAt"]).timestamp()
        accepted[call["serviceCallId"]] = Accepted(due, response.answered)
    return accepted


def compute_lateness_ms(accepted: dict[str, Accepted], requests: Sequence[ReceivedRequest]) -> list[float]:
    """Return the lateness of each call in the order of the due times.

    The API truncates due times to milliseconds, so up to 1 ms of the lateness is not the engine's.
    """
    first: dict[str, float] = {}
    for request in requests:
        first.setdefault(request.call, request.time)
    return [
        (first[call] - promise.due) * 1000
        for call, promise in sorted(accepted.items(), key=lambda item: item[1])
        if call in first
    ]


def run_steady_load(
    system: System, target: Target, tenant: dict[str, str], rate: float, seconds: float, label: str
) -> Measured:
    """Submit calls that are due now, one by one at this rate."""
    count, path = max(1, int(rate * seconds)), f"/ok?{label}"
    body = build_submission(target.build_url(path))
    with LoadProcess(build_job(system, tenant, body, count, connections=CONNECTIONS, rate=rate)) as process:
        requests = target.collect(path, count, seconds + 60)
        responses = process.wait(30)
    late = compute_lateness_ms(parse_accepted(responses), requests)
    answer_times = [(response.answered - response.sent) * 1000 for response in responses]
    duration = max(1e-6, responses[-1].sent - responses[0].sent)
    return {
        "lateness_ms": summarize_distribution(late, 2),
        "answer_ms": summarize_distribution(answer_times, 2),
        "per_second": round((count - 1) / duration, 1) if count > 1 else None,
        "sent_more_than_once": len(requests) - len({request.call for request in requests}),
    }


def run_single_calls(
    system: System, target: Target, tenant: dict[str, str], count: int, pause: float, label: str
) -> Measured:
    """Measure the time from the client's 202 to the request at the target, one call after the other.

    It is negative if the request was sent before the client had its answer.
    """
    after_202, after_submit = [], []
    for number in range(count):
        path = f"/ok?{label}-{number}"
        body = build_submission(target.build_url(path))
        (response,) = run_load(build_job(system, tenant, body, 1, connections=1), 30)
        (request, *_) = target.collect(path, 1, 30)
        parse_accepted([response])
        after_202.append((request.time - response.answered) * 1000)
        after_submit.append((request.time - response.sent) * 1000)
        time.sleep(pause)
    return {
        "wire_after_202_ms": summarize_distribution(after_202, 2),
        "wire_after_submit_ms": summarize_distribution(after_submit, 2),
    }


def summarize_percentiles(rounds: list[Measured], name: str) -> dict[str, Any]:
    """Return the median of each percentile over the rounds."""
    percentiles = [key for key in rounds[0][name] if key != "count"]
    return {key: summarize_rounds([each[name][key] for each in rounds], 2) for key in percentiles}


def measure(workspace: Workspace, options: argparse.Namespace, report: Report) -> None:
    rounds: list[Measured] = []
    with (
        start_target(workspace) as target,
        start_system(workspace, workspace.create_database(), [target]) as system,
    ):
        tenant = system.agent("ensure_tenant", name="lateness")
        log_progress("warming up")
        run_steady_load(system, target, tenant, 20, min(2.0, options.seconds), "warm")
        for number in range(options.rounds):
            progress = f"round {number + 1} of {options.rounds}"
            log_progress(f"{progress}: {options.rate:g} calls/s for {options.seconds:g} s")
            measured = run_steady_load(
                system, target, tenant, options.rate, options.seconds, f"steady-{number}"
            )
            system.wait_until_published()
            log_progress(f"{progress}: {options.singles} single calls")
            measured |= run_single_calls(
                system, target, tenant, options.singles, options.pause, f"single-{number}"
            )
            rounds.append(measured)
    names = ("lateness_ms", "answer_ms", "wire_after_202_ms", "wire_after_submit_ms")
    report.figures = {name: summarize_percentiles(rounds, name) for name in names}
    report.figures["per_second"] = summarize_rounds([each["per_second"] for each in rounds])
    report.figures["sent_more_than_once"] = sum(each["sent_more_than_once"] for each in rounds)
    report.add_table(
        f"{options.rate:g} calls/s over REST, and single calls on an idle system: ms, median of the rounds (min–max)",
        ["", "p50", "p95", "p99", "max"],
        [[name.replace("_", " "), *report.figures[name].values()] for name in names],
    )


def build_parser() -> argparse.ArgumentParser:
    parser = create_parser("lateness", __doc__, rounds=3)
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="length of the steady load (default: %(default)g)"
    )
    parser.add_argument(
        "--rate", type=float, default=100.0, help="submissions per second (default: %(default)g)"
    )
    parser.add_argument(
        "--singles", type=parse_positive, default=20, help="single calls per round (default: %(default)s)"
    )
    parser.add_argument(
        "--pause", type=float, default=1.0, help="seconds between single calls (default: %(default)g)"
    )
    return parser


if __name__ == "__main__":
    run_program(build_parser(), "lateness", measure)

"""How fast calls are accepted over REST, one by one and a thousand per request, compared with a bare endpoint.

The bare endpoint (benchmarks/bare_drf) is Django REST framework with one insert, under the same gunicorn settings and
with the same client. It runs with a commit as durable as ours (FULL) and with a less durable one (NORMAL).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from benchmarks.command_line import create_parser, parse_positive, run_program
from benchmarks.lateness import build_job, build_submission
from benchmarks.load_generator import LoadJob, LoadResponse, compute_rate, count_statuses, run_load
from benchmarks.processes import BenchmarkError, find_free_port, start_process, wait_until
from benchmarks.report import (
    Report,
    compute_ratio,
    log_progress,
    summarize_distribution,
    summarize_rounds,
)
from benchmarks.system import (
    WEB_WORKERS,
    System,
    Workspace,
    build_environment,
    is_answering,
    rotate,
    start_system,
)

CALLS_PER_BATCH = 1000
BATCH_CONNECTIONS = 2
WARM_UP_CALLS = 200
URL = "http://127.0.0.1:9/never"

Measured = dict[str, Any]


def format_next_year() -> str:
    return f"{datetime.now(UTC) + timedelta(days=365):%Y-%m-%dT%H:%M:%SZ}"


def check_accepted(responses: list[LoadResponse]) -> list[LoadResponse]:
    """Return the responses. Raise BenchmarkError if one is not a 202."""
    statuses = count_statuses(responses)
    if set(statuses) != {202}:
        bodies = (response.body[:300] for response in responses if response.status != 202)
        raise BenchmarkError(f"expected 202 only, but got {statuses}: {next(bodies, 'no response')}")
    return responses


def measure_single_submissions(job: LoadJob) -> Measured:
    """Send the job and return its rate and the response times."""
    responses = check_accepted(run_load(job))
    times = summarize_distribution([(each.answered - each.sent) * 1000 for each in responses], 2)
    return {
        "per_second": compute_rate(responses),
        "answer_p50_ms": times["p50"],
        "answer_p99_ms": times["p99"],
    }


def measure_batches(system: System, tenant: dict[str, str], requests: int) -> Measured | None:
    """Send batches of 1,000 calls. Return None if the API has no such endpoint."""
    item = json.loads(build_submission(URL, dueAt=format_next_year()))
    body = json.dumps({"items": [item] * CALLS_PER_BATCH})
    job = build_job(system, tenant, body, requests, connections=BATCH_CONNECTIONS)
    responses = run_load(replace(job, path=job.path + "/batch"))
    if count_statuses(responses).keys() <= {404, 405}:
        return None
    refused = next((response for response in responses if not 200 <= response.status < 300), None)
    if refused is not None:
        raise BenchmarkError(f"a batch was refused with {refused.status}: {refused.body[:300]}")
    if not all(response.body.count("serviceCallId") >= CALLS_PER_BATCH for response in responses):
        raise BenchmarkError(f"not every call of a batch was accepted: {responses[0].body[:300]}")
    return {"per_second": compute_rate(responses) * CALLS_PER_BATCH}


@contextlib.contextmanager
def start_bare_endpoint(workspace: Workspace, synchronous: str) -> Iterator[int]:
    """Start the bare endpoint and return its port."""
    port, name = find_free_port(), workspace.create_name("bare")
    env = build_environment(
        DJANGO_SETTINGS_MODULE="benchmarks.bare_drf.settings",
        BARE_DB=str(workspace.folder / f"{name}.sqlite3"),
        BARE_SYNCHRONOUS=synchronous,
    )
    migrate = [sys.executable, "-m", "django", "migrate", "--run-syncdb", "--verbosity", "0"]
    argv = [
        sys.executable, "-m", "gunicorn", "benchmarks.bare_drf.wsgi", "--bind", f"127.0.0.1:{port}",
        "--workers", str(WEB_WORKERS), "--preload", "--log-level", "warning",
    ]  # fmt: skip
    log = workspace.folder / f"{name}.log"
    with log.open("wb") as file:
        with start_process(migrate, env, stdout=file, stderr=file) as migration:
            if migration.wait(60):
                raise BenchmarkError(log.read_text()[-800:])
        with start_process(argv, env, stdout=file, stderr=file) as server:
            wait_until(lambda: is_answering(port, "/submissions", server), "the bare endpoint answers", 60)
            yield port


def measure_bare(workspace: Workspace, options: argparse.Namespace, synchronous: str) -> Measured:
    """Measure the bare endpoint with this setting of SQLite's `synchronous`."""
    with start_bare_endpoint(workspace, synchronous) as port:
        body = build_submission(URL, dueAt=format_next_year())
        job = LoadJob(port, "/submissions", body, count=options.calls, connections=options.connections)
        measure_single_submissions(replace(job, count=min(WARM_UP_CALLS, options.calls)))
        return measure_single_submissions(job)


def measure_system(workspace: Workspace, options: argparse.Namespace, in_batches: bool) -> Measured | None:
    """Measure a new system, with single submissions or with batches."""
    database = workspace.create_database()
    with start_system(workspace, database) as system:
        tenant = system.agent("ensure_tenant", name="submit", limits=False)
        body = build_submission(URL, dueAt=format_next_year())
        job = build_job(system, tenant, body, options.calls, connections=options.connections)
        # Web workers cache a tenant's limits for some seconds; the warm-up gives them time to see the new ones.
        measure_single_submissions(replace(job, count=min(WARM_UP_CALLS, options.calls)))
        started = time.monotonic()
        if in_batches:
            measured = measure_batches(system, tenant, options.batches)
        else:
            measured = measure_single_submissions(job)
        duration = time.monotonic() - started
        system.wait_until_published(60 + 10 * duration)
    workspace.delete_database(database)
    return measured


def measure(workspace: Workspace, options: argparse.Namespace, report: Report) -> None:
    rounds: dict[str, list[Measured]] = defaultdict(list)
    candidates: list[tuple[str, Callable[[], Measured | None]]] = [
        ("one by one", lambda: measure_system(workspace, options, in_batches=False)),
        ("bare, FULL", lambda: measure_bare(workspace, options, "FULL")),
        ("in batches", lambda: measure_system(workspace, options, in_batches=True)),
        ("bare, NORMAL", lambda: measure_bare(workspace, options, "NORMAL")),
    ]
    for number in range(options.rounds):
        for name, run in rotate(candidates, number):
            log_progress(f"round {number + 1} of {options.rounds}: {name}")
            if measured := run():
                rounds[name].append(measured)
    if "in batches" not in rounds:
        report.add_note("Batches were not measured, because the API has no endpoint for them.")
    _add_figures(rounds, report)


def _add_figures(rounds: dict[str, list[Measured]], report: Report) -> None:
    figures = report.figures
    for name, measured in rounds.items():
        figures[name] = {key: summarize_rounds([each[key] for each in measured], 1) for key in measured[0]}
    ours = figures["one by one"]["per_second"]["median"]
    for name in ("bare, FULL", "bare, NORMAL"):
        figures[f"ratio to {name}"] = compute_ratio(ours, figures[name]["per_second"]["median"])
    rows = []
    for name in ("one by one", "bare, FULL", "bare, NORMAL", "in batches"):
        if name in rounds:
            row = figures[name]
            ratio = figures.get(f"ratio to {name}")
            rows.append([name, row["per_second"], ratio, row.get("answer_p50_ms"), row.get("answer_p99_ms")])
    report.add_table(
        "Calls accepted per second over REST, 2 sync workers: median (min–max)",
        ["", "calls/s", "ours is", "p50 ms", "p99 ms"],
        rows,
    )
    report.add_note("gunicorn's sync workers close the connection after each response, here on both sides.")


def build_parser() -> argparse.ArgumentParser:
    parser = create_parser("submit", __doc__, rounds=5)
    parser.add_argument(
        "--calls", type=parse_positive, default=10_000, help="single submissions (default: %(default)s)"
    )
    parser.add_argument(
        "--connections", type=parse_positive, default=16, help="connections at once (default: %(default)s)"
    )
    parser.add_argument(
        "--batches",
        type=parse_positive,
        default=20,
        help="requests with 1,000 calls each (default: %(default)s)",
    )
    return parser


if __name__ == "__main__":
    run_program(build_parser(), "submit", measure)

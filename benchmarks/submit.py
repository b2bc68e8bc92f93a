"""How fast calls are accepted over REST, one by one and a thousand a request, as a part of what a bare endpoint does.

The bare endpoint (benchmarks/bare_drf) is Django REST framework with one insert, under the same gunicorn settings and
the same client, with a commit as durable as ours (FULL) and with a lesser one (NORMAL). They take turns.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from benchmarks import harness
from benchmarks.figures import Report, distribution, ratio, say, spread
from benchmarks.harness import BenchmarkError, Stage, System
from benchmarks.lateness import job, submission
from benchmarks.loader import Answered, Job, load, rate, statuses

WORKERS = 2  # as `make run` has them
PER_BATCH = 1000
BATCH_CONNECTIONS = 2
URL = "http://127.0.0.1:9/never"

Measured = dict[str, Any]


def next_year() -> str:
    return f"{datetime.now(UTC) + timedelta(days=365):%Y-%m-%dT%H:%M:%SZ}"


def accepted(answered: list[Answered], expected: int) -> list[Answered]:
    if set(statuses(answered)) != {expected}:
        odd = next((one.body[:300] for one in answered if one.status != expected), "nothing was answered")
        raise BenchmarkError(f"expected {expected}, had {statuses(answered)}: {odd}")
    return answered


def one_by_one(work: Job) -> Measured:
    answered = accepted(load(work), 202)
    times = distribution([(one.answered - one.sent) * 1000 for one in answered], 2)
    return {"per_second": rate(answered), "answer_p50_ms": times["p50"], "answer_p99_ms": times["p99"]}


def batches(system: System, tenant: dict[str, str], requests: int) -> Measured | None:
    """None while there is no such endpoint."""
    item = json.loads(submission(URL, dueAt=next_year()))
    work = job(
        system, tenant, json.dumps({"items": [item] * PER_BATCH}), requests, connections=BATCH_CONNECTIONS
    )
    work = Job(**{**vars(work), "path": work.path + "/batch"})
    answered = load(work)
    if statuses(answered).keys() <= {404, 405}:
        return None
    odd = next((one for one in answered if not 200 <= one.status < 300), None)
    if odd is not None:
        raise BenchmarkError(f"a batch was refused with {odd.status}: {odd.body[:300]}")
    if not all(one.body.count("serviceCallId") >= PER_BATCH for one in answered):
        raise BenchmarkError(f"not every call of a batch was accepted: {answered[0].body[:300]}")
    return {"per_second": rate(answered) * PER_BATCH}


@contextlib.contextmanager
def bare(stage: Stage, synchronous: str) -> Iterator[int]:
    """The bare endpoint's port."""
    port, name = harness.free_port(), stage.name("bare")
    env = {
        **harness.environment(),
        "DJANGO_SETTINGS_MODULE": "benchmarks.bare_drf.settings",
        "BARE_DB": str(stage.folder / f"{name}.sqlite3"),
        "BARE_SYNCHRONOUS": synchronous,
    }
    migrate = [sys.executable, "-m", "django", "migrate", "--run-syncdb", "--verbosity", "0"]
    argv = [
        sys.executable, "-m", "gunicorn", "benchmarks.bare_drf.wsgi", "--bind", f"127.0.0.1:{port}",
        "--workers", str(WORKERS), "--preload", "--log-level", "warning",
    ]  # fmt: skip
    log = stage.folder / f"{name}.log"
    with log.open("wb") as file:
        with harness.process(migrate, env, stdout=file, stderr=file) as made:
            if made.wait(60):
                raise BenchmarkError(log.read_text()[-800:])
        with harness.process(argv, env, stdout=file, stderr=file) as popen:
            harness.until(
                lambda: harness.answers(port, "/submissions", popen), "the bare endpoint answers", 60
            )
            yield port


def measure(stage: Stage, options: argparse.Namespace, report: Report) -> None:
    rounds: dict[str, list[Measured]] = defaultdict(list)
    warm = min(200, options.calls)

    def with_bare(synchronous: str) -> Measured:
        with bare(stage, synchronous) as port:
            work = Job(
                port, "/submissions", submission(URL, dueAt=next_year()), connections=options.connections
            )
            one_by_one(Job(**{**vars(work), "count": warm}))
            return one_by_one(Job(**{**vars(work), "count": options.calls}))

    def with_system(name: str) -> Measured:
        database = stage.database()
        with harness.system(stage, database) as system:
            tenant = system.agent("tenant", name="submit", limits=False)
            # A worker counts a tenant's limits for some seconds: new ones have to arrive.
            body = submission(URL, dueAt=next_year())
            one_by_one(job(system, tenant, body, warm, connections=options.connections))
            began = time.monotonic()
            if name == "one by one":
                found = one_by_one(job(system, tenant, body, options.calls, connections=options.connections))
            else:
                found = batches(system, tenant, options.batches) or {}
            taken = time.monotonic() - began
            system.until_quiet(60 + 10 * taken)
        stage.forget(database)
        return found

    things: list[tuple[str, Callable[[], Measured]]] = [
        ("one by one", lambda: with_system("one by one")),
        ("bare, FULL", lambda: with_bare("FULL")),
        ("in batches", lambda: with_system("in batches")),
        ("bare, NORMAL", lambda: with_bare("NORMAL")),
    ]
    for number in range(options.rounds):
        for name, run in harness.turns(things, number):
            say(f"round {number + 1} of {options.rounds}: {name}")
            found = run()
            if found:
                rounds[name].append(found)
    if "in batches" not in rounds:
        report.note("The API has no /batch yet: submission in batches was not measured.")
    _sum_up(rounds, report)


def _sum_up(rounds: dict[str, list[Measured]], report: Report) -> None:
    figures = report.figures
    for name, found in rounds.items():
        figures[name] = {what: spread([one[what] for one in found], 1) for what in found[0]}
    ours = figures["one by one"]["per_second"]["median"]
    for name in ("bare, FULL", "bare, NORMAL"):
        figures[f"ratio to {name}"] = ratio(ours, figures[name]["per_second"]["median"])
    rows = []
    for name in ("one by one", "bare, FULL", "bare, NORMAL", "in batches"):
        if name in rounds:
            one = figures[name]
            share = figures.get(f"ratio to {name}")
            rows.append([name, one["per_second"], share, one.get("answer_p50_ms"), one.get("answer_p99_ms")])
    report.table(
        "Calls accepted a second over REST, 2 sync workers: median (least–most)",
        ["", "calls/s", "ours is", "p50 ms", "p99 ms"],
        rows,
    )
    report.note("gunicorn's sync workers close the connection after each answer: so do both sides here.")


def arguments() -> argparse.ArgumentParser:
    made = harness.parser("submit", __doc__, rounds=5)
    made.add_argument("--calls", type=harness.positive, default=10_000)
    made.add_argument("--connections", type=harness.positive, default=16)
    made.add_argument("--batches", type=harness.positive, default=20, help="requests of 1,000 calls")
    return made


if __name__ == "__main__":
    harness.run_program(arguments(), "submit", measure)

"""Compare Event Service with pg-boss, graphile-worker, BullMQ, huey and Celery: the same work on the same machine, in turns.

Each job is one POST of 200 bytes to the same local receiver, which records arrivals. The packages are installed into a cache
folder. PostgreSQL and Redis must be running (`make services NAMES="postgres redis"`); databases are created for the run and
removed. The results are written to benchmarks/peers/results/, from where `python -m benchmarks.peers.report` makes tables
and plots.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import asdict, fields
from pathlib import Path

from benchmarks.command_line import exit_cleanly, find_service_url, parse_positive, parse_server
from benchmarks.huey_peer import find_empty_redis_database
from benchmarks.peers.candidates import Arena, Candidate, Servers, StoreKind, find_candidates
from benchmarks.peers.receiver import start_receiver
from benchmarks.peers.report import print_tables
from benchmarks.peers.results import FOLDER, Results, build_path
from benchmarks.peers.turns import Turn, plan_turns, take_turns
from benchmarks.peers.workloads import Figures, Run, Sizes, find_workloads
from benchmarks.processes import BenchmarkError
from benchmarks.report import find_file_system, log_progress
from benchmarks.system import Workspace

QUICK = Sizes(calls=2_000, pending=10_000, seconds=5.0, bulk=5_000, warm_up=100, idle_seconds=1.0)
SMOKE = Sizes(
    calls=50, pending=100, rate=20.0, seconds=0.5, ahead_seconds=1.0, bulk=50, warm_up=5, idle_seconds=0.0
)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument(
        "--candidates",
        nargs="+",
        default=[],
        metavar="NAME",
        help="measure only candidates whose names contain one of these texts",
    )
    parser.add_argument(
        "--workloads", nargs="+", default=[], metavar="NAME", help="burst, pending, lateness or submission"
    )
    parser.add_argument(
        "--rounds",
        type=parse_positive,
        default=3,
        help="measure everything this many times (default: %(default)s)",
    )
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument("--quick", action="store_true", help="use small sizes: is something badly wrong?")
    sizes.add_argument("--smoke", action="store_true", help="use tiny sizes, to test the program itself")
    for size in fields(Sizes):
        kind = float if size.type == "float" else int
        parser.add_argument(
            f"--{size.name.replace('_', '-')}", type=kind, help=f"(default: {size.default})", metavar="N"
        )
    parser.add_argument(
        "--postgresql", type=parse_server, default="postgres", metavar="URL", help="a PostgreSQL server"
    )
    parser.add_argument(
        "--redis", metavar="URL", help="a Redis database that may be flushed (default: an empty one)"
    )
    parser.add_argument("--folder", type=Path, help="create the temporary folder here")
    parser.add_argument(
        "--results", type=Path, default=FOLDER, help="write the results to this folder (default: %(default)s)"
    )
    return parser


def choose_sizes(options: argparse.Namespace) -> Sizes:
    """Return the sizes of the run: a preset, changed by the options that name a size."""
    preset = SMOKE if options.smoke else QUICK if options.quick else Sizes()
    given = {size.name: getattr(options, size.name) for size in fields(Sizes)}
    return Sizes(**{**asdict(preset), **{name: value for name, value in given.items() if value is not None}})


def find_servers(options: argparse.Namespace, candidates: list[Candidate]) -> Servers:
    """Return the servers, after checking that an empty Redis database exists if one is needed."""
    redis = options.redis
    if redis is None and any(candidate.store is StoreKind.REDIS for candidate in candidates):
        url = find_service_url("redis")
        redis = find_empty_redis_database(url)
        if redis is None:
            raise BenchmarkError(
                f"no Redis with an empty database answers at {url}. Start one: make services NAMES=redis"
            )
    return Servers(options.postgresql, redis or "")


def describe_candidate(candidate: Candidate) -> dict[str, object]:
    return {
        "version": candidate.read_version(),
        "store": candidate.store,
        "settings": candidate.settings,
        "record": asdict(candidate.record),
        "far_future": candidate.far_future,
    }


def measure_turn(arena: Arena, sizes: Sizes, turn: Turn) -> Figures:
    """Start the candidate, run the workload, and stop it. Raise BenchmarkError if that fails in any way."""
    try:
        with turn.candidate.start(arena) as running:
            label = arena.workspace.create_name("run")
            return turn.workload.measure(Run(turn.candidate, running, arena.receiver, sizes, label))
    except (OSError, subprocess.SubprocessError) as error:
        raise BenchmarkError(f"{type(error).__name__}: {error}") from error


def main() -> int:
    """Return 0, or 1 if a run failed."""
    parser = build_parser()
    options = parser.parse_args()
    try:
        candidates, workloads = find_candidates(options.candidates), find_workloads(options.workloads)
    except ValueError as error:
        parser.error(str(error))
    sizes = choose_sizes(options)
    with exit_cleanly("the comparison"), Workspace.open(options.folder, None) as workspace:
        servers = find_servers(options, candidates)
        for candidate in candidates:
            candidate.install()
        results = Results(
            {"rounds": options.rounds, **asdict(sizes)},
            {candidate.name: describe_candidate(candidate) for candidate in candidates},
            build_path(options.results),
        )
        results.on["file_system"] = find_file_system(workspace.folder)
        with start_receiver(workspace.folder) as receiver:
            arena = Arena(workspace, servers, receiver)
            turns = list(plan_turns(workloads, candidates, options.rounds))
            take_turns(turns, lambda turn: measure_turn(arena, sizes, turn), results)
    print_tables(results)
    print(results.to_json(), flush=True)
    log_progress(f"saved as {results.path}")
    return 1 if results.failures else 0


if __name__ == "__main__":
    sys.exit(main())

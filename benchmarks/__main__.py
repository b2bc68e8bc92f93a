"""Run all benchmarks one after the other: `python -m benchmarks [--quick] [--save] [--database URL] [--folder PATH]`."""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
from pathlib import Path

from benchmarks.command_line import exit_cleanly, parse_server, run_measurement
from benchmarks.processes import REPOSITORY
from benchmarks.system import Workspace

PROGRAMS = ("idle", "lateness", "burst", "submit", "slow", "pending", "storage", "stores", "lists", "startup")
# Small sizes: within minutes a run shows whether something is badly wrong, and no more than that.
QUICK = {
    "idle": ["--seconds", "10"],
    "lateness": ["--seconds", "10", "--rounds", "1", "--singles", "5"],
    "burst": ["--calls", "2000", "--rounds", "1"],
    "submit": ["--calls", "1000", "--rounds", "1"],
    "slow": ["--calls", "500", "--rounds", "1", "--delay", "4"],
    "pending": ["--pending", "1000,10000", "--calls", "2000", "--seconds", "5", "--rounds", "1"],
    "storage": ["--calls", "20000"],
    "stores": [
        "--pending", "1000,20000", "--timers", "1000", "--removed", "1000", "--seconds", "5", "--rounds", "1",
    ],
    "lists": ["--calls", "10000", "--requests", "50"],
    "startup": ["--rounds", "5"],
}  # fmt: skip
# Tiny sizes: within seconds a run shows whether the programs themselves work.
SMOKE = {
    "idle": ["--seconds", "0.2"],
    "lateness": ["--seconds", "0.5", "--rate", "20", "--singles", "1", "--pause", "0", "--rounds", "1"],
    "burst": ["--calls", "20", "--rounds", "1", "--no-peers"],
    "submit": ["--calls", "20", "--batches", "1", "--rounds", "1"],
    "slow": ["--calls", "10", "--delay", "0.5", "--rate", "10", "--before", "0.2", "--rounds", "1"],
    "pending": ["--pending", "20", "--calls", "10", "--seconds", "0.2", "--rounds", "1"],
    "storage": ["--calls", "20"],
    "stores": [
        "--store", "postgres", "--pending", "20", "--timers", "10", "--removed", "10", "--shards", "4",
        "--rate", "10", "--seconds", "0.5", "--rounds", "1",
    ],
    "lists": ["--calls", "100", "--requests", "8", "--depth", "2"],
    "startup": ["--rounds", "1"],
}  # fmt: skip


def main() -> int:
    """Return the exit status: 1 if a benchmark failed, 130 if it was interrupted."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="use small sizes: minutes instead of an hour")
    parser.add_argument(
        "--smoke",
        action="store_true",
        help="use tiny sizes and one system for all, to test the programs themselves",
    )
    options, passed_on = parser.parse_known_args()
    if options.smoke:
        run_smoke_test(passed_on)
        return 0
    failed = []
    for name in PROGRAMS:
        sizes = QUICK[name] if options.quick else []
        argv = [sys.executable, "-m", f"benchmarks.{name}", *sizes, *passed_on]
        status = subprocess.run(argv, cwd=REPOSITORY).returncode
        if status == 130:
            return status
        if status:
            failed.append(name)
    if failed:
        print("failed: " + ", ".join(failed), file=sys.stderr)
    return 1 if failed else 0


def run_smoke_test(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks --smoke")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--database", type=parse_server)
    options = parser.parse_args(arguments)
    with exit_cleanly("the smoke test"), Workspace.open(options.folder, options.database) as workspace:
        workspace.shared = True
        # All are imported first: benchmarks.limits replaces Python's SQLite library by one that cannot tell sizes.
        modules = [(name, importlib.import_module(f"benchmarks.{name}")) for name in PROGRAMS]
        for name, module in modules:
            sizes = module.build_parser().parse_args(SMOKE[name])
            run_measurement(name, module.measure, workspace, sizes).publish(save=False)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)

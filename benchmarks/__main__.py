"""All programs, one after the other: `python -m benchmarks [--quick] [--save] [--database URL]`."""

from __future__ import annotations

import argparse
import subprocess
import sys

from benchmarks.harness import REPOSITORY

PROGRAMS = ("idle", "lateness", "burst", "submit", "slow", "pending", "lists")
# Sizes by which a run of all says in minutes whether something is badly wrong, and no more than that.
QUICK = {
    "idle": ["--seconds", "10"],
    "lateness": ["--seconds", "10", "--rounds", "1", "--singles", "5"],
    "burst": ["--calls", "2000", "--rounds", "1"],
    "submit": ["--calls", "1000", "--rounds", "1"],
    "slow": ["--calls", "500", "--rounds", "1", "--delay", "4"],
    "pending": ["--pending", "1000,10000", "--calls", "2000", "--seconds", "5", "--rounds", "1"],
    "lists": ["--calls", "10000", "--requests", "50"],
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes: minutes instead of an hour")
    options, rest = parser.parse_known_args()
    failed = []
    for name in PROGRAMS:
        sizes = QUICK[name] if options.quick else []
        program = subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *sizes, *rest], cwd=REPOSITORY)
        if program.returncode == 130:
            return 130
        if program.returncode:
            failed.append(name)
    if failed:
        print("failed: " + ", ".join(failed), file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)

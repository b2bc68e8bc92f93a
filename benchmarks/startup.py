"""How long `manage.py help` takes: the start of every command, compared with a bare project.

The bare project (benchmarks/bare_project) has the same third-party apps in INSTALLED_APPS and nothing else. Both run in
turns. The best run counts, because a busy machine only adds time.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.command_line import create_parser, run_program
from benchmarks.processes import REPOSITORY, BenchmarkError
from benchmarks.report import Report, compute_ratio, log_progress, summarize_rounds
from benchmarks.system import Workspace, build_environment, rotate

BARE_PROJECT = Path(__file__).resolve().parent / "bare_project"
FIGURES = ("wall_ms", "cpu_ms")

Measured = dict[str, float]


def list_third_party_apps() -> list[str]:
    """Return INSTALLED_APPS without the project's own apps. The project's admin site is replaced by Django's."""
    program = "import json; from django.conf import settings; print(json.dumps(settings.INSTALLED_APPS))"
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=REPOSITORY,
        env=build_environment(),
        capture_output=True,
        text=True,
    )
    if result.returncode:
        raise BenchmarkError(f"the settings cannot be imported: {result.stderr[-800:]}")
    apps = json.loads(result.stdout)
    own_packages = {path.parent.name for path in REPOSITORY.glob("*/__init__.py")}
    return ["django.contrib.admin", *(app for app in apps if app.split(".")[0] not in own_packages)]


def run_help(folder: Path, env: dict[str, str]) -> Measured:
    """Run the folder's `manage.py help` and return its wall-clock and CPU time."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    result = subprocess.run([sys.executable, "manage.py", "help"], cwd=folder, env=env, capture_output=True)
    wall = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if result.returncode:
        raise BenchmarkError(f"manage.py help failed in {folder}: {result.stderr[-800:]!r}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall_ms": wall * 1000, "cpu_ms": cpu * 1000}


def measure(workspace: Workspace, options: argparse.Namespace, report: Report) -> None:
    env = build_environment(workspace.create_database(), BARE_APPS=json.dumps(list_third_party_apps()))
    projects: Sequence[tuple[str, Path]] = [("help", REPOSITORY), ("bare", BARE_PROJECT)]
    for _, folder in projects:
        run_help(folder, env)  # compiles what was not compiled yet
    rounds: dict[str, list[Measured]] = defaultdict(list)
    log_progress(f"{options.rounds} rounds")
    for number in range(options.rounds):
        for name, folder in rotate(projects, number):
            rounds[name].append(run_help(folder, env))
    figures: dict[str, Any] = {
        name: {key: summarize_rounds([each[key] for each in measured], 1) for key in FIGURES}
        for name, measured in rounds.items()
    }
    best = {name: {key: figures[name][key]["min"] for key in FIGURES} for name, _ in projects}
    figures["ratio to bare"] = {key: compute_ratio(best["help"][key], best["bare"][key]) for key in FIGURES}
    report.figures = figures
    report.add_table(
        "manage.py help: median (min–max)",
        ["", "wall clock, ms", "CPU, ms"],
        [
            ["Event Service", *figures["help"].values()],
            ["bare project", *figures["bare"].values()],
            ["ratio of the best runs", *figures["ratio to bare"].values()],
        ],
    )


def build_parser() -> argparse.ArgumentParser:
    return create_parser("startup", __doc__, rounds=20)


if __name__ == "__main__":
    run_program(build_parser(), "startup", measure)

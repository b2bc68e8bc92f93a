"""CPU and memory of a system that has nothing to do."""

from __future__ import annotations

import argparse
import time
from typing import Any

from benchmarks.command_line import create_parser, run_program
from benchmarks.processes import CpuUsage, read_pss_mb
from benchmarks.report import Report, log_progress, summarize_rounds
from benchmarks.system import System, Workspace, start_system

SETTLE_SECONDS = 8.0


def measure_round(system: System, seconds: float) -> dict[str, Any]:
    pids = [*system.list_cluster_pids(), *system.list_web_pids()]
    usage = CpuUsage(pids)
    time.sleep(seconds)
    percent = {pid: 100 * cpu / usage.elapsed for pid, cpu in usage.seconds().items()}
    memory = {pid: read_pss_mb(pid) for pid in pids}
    return {"cpu_percent": system.sum_by_role(percent), "pss_mb": system.sum_by_role(memory)}


def measure(workspace: Workspace, options: argparse.Namespace, report: Report) -> None:
    rounds = []
    with start_system(workspace, workspace.create_database()) as system:
        time.sleep(min(SETTLE_SECONDS, options.seconds))
        for number in range(options.rounds):
            log_progress(f"round {number + 1} of {options.rounds}: {options.seconds:g} s")
            rounds.append(measure_round(system, options.seconds))
    for kind in ("cpu_percent", "pss_mb"):
        roles = list(rounds[0][kind])
        figures = {role: summarize_rounds([each[kind][role] for each in rounds], 2) for role in roles}
        totals = [sum(each[kind][role] for role in roles if role != "web") for each in rounds]
        report.figures[kind] = {"engine, dispatcher and cluster": summarize_rounds(totals, 2), **figures}
    cpu, memory = report.figures["cpu_percent"], report.figures["pss_mb"]
    report.add_table(
        f"Idle for {options.seconds:g} s: median (min–max)",
        ["", "CPU, % of a core", "memory (PSS), MB"],
        [[role, cpu[role], memory[role]] for role in cpu],
    )


def build_parser() -> argparse.ArgumentParser:
    parser = create_parser("idle", __doc__, rounds=1)
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="the length of a round (default: %(default)g)"
    )
    return parser


if __name__ == "__main__":
    run_program(build_parser(), "idle", measure)

"""What a system costs that has nothing to do."""

from __future__ import annotations

import argparse
import time
from typing import Any

from benchmarks import harness, processes
from benchmarks.figures import Report, say, spread
from benchmarks.harness import Stage, System
from benchmarks.processes import Used

SETTLE_SECONDS = 8.0


def idle(system: System, seconds: float) -> dict[str, Any]:
    pids = [*system.cluster(), *system.web()]
    used = Used(pids)
    time.sleep(seconds)
    percent = {pid: 100 * cpu / used.elapsed for pid, cpu in used.seconds().items()}
    memory = {pid: processes.pss_mb(pid) for pid in pids}
    return {"cpu_percent": system.by_role(percent), "pss_mb": system.by_role(memory)}


def measure(stage: Stage, options: argparse.Namespace, report: Report) -> None:
    rounds = []
    with harness.system(stage, stage.database()) as system:
        time.sleep(min(SETTLE_SECONDS, options.seconds))
        for number in range(options.rounds):
            say(f"round {number + 1} of {options.rounds}: {options.seconds:g} s")
            rounds.append(idle(system, options.seconds))
    for kind in ("cpu_percent", "pss_mb"):
        roles = list(rounds[0][kind])
        figures = {role: spread([one[kind][role] for one in rounds], 2) for role in roles}
        totals = [sum(one[kind][role] for role in roles if role != "web") for one in rounds]
        report.figures[kind] = {"engine, dispatcher and cluster": spread(totals, 2), **figures}
    cpu, memory = report.figures["cpu_percent"], report.figures["pss_mb"]
    report.table(
        f"Idle for {options.seconds:g} s: median (least–most)",
        ["", "CPU, % of a core", "memory (PSS), MB"],
        [[role, cpu[role], memory[role]] for role in cpu],
    )


def arguments() -> argparse.ArgumentParser:
    made = harness.parser("idle", __doc__, rounds=1)
    made.add_argument("--seconds", type=float, default=60.0)
    return made


if __name__ == "__main__":
    harness.run_program(arguments(), "idle", measure)

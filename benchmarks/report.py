"""Figures of a run: how they are summarized and printed, as one JSON line on stdout and as tables on stderr."""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).resolve().parent / "results"
PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}

# Without a terminal, the console is wide enough for the tables.
console = Console(stderr=True, width=None if sys.stderr.isatty() else 140)


def compute_percentile(values: Sequence[float], share: float) -> float | None:
    """Return the smallest of the values that at least this share of them does not exceed."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def summarize_distribution(values: Sequence[float], digits: int = 1) -> dict[str, float | int | None]:
    """Return the number of values and their percentiles."""
    summary: dict[str, float | int | None] = {"count": len(values)}
    for name, share in PERCENTILES.items():
        value = compute_percentile(values, share)
        summary[name] = None if value is None else round(value, digits)
    return summary


def summarize_rounds(values: Sequence[float | None], digits: int = 1) -> dict[str, Any]:
    """Return the median and the range of a figure that was measured once a round. None is left out."""
    known = [value for value in values if value is not None]
    if not known:
        return {"median": None, "min": None, "max": None, "rounds": []}
    rounds = [round(value, digits) for value in known]
    return {
        "median": round(statistics.median(known), digits),
        "min": min(rounds),
        "max": max(rounds),
        "rounds": rounds,
    }


def compute_ratio(ours: float | None, theirs: float | None) -> float | None:
    """Return ours divided by theirs, or None if either is missing or theirs is zero."""
    return round(ours / theirs, 3) if ours is not None and theirs else None


def describe_machine() -> dict[str, Any]:
    """Return what the benchmark runs on, and how busy the machine was before the run."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(memory / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_before": [round(load, 2) for load in os.getloadavg()],
        "commit": _describe_commit(),
    }


def _describe_commit() -> str | None:
    """Return the commit, with a star if the working tree has uncommitted changes."""
    result = subprocess.run(
        ["git", "describe", "--always", "--dirty=*"],
        cwd=RESULTS.parent,
        env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        capture_output=True,
        text=True,
    )
    return result.stdout.strip() or None


def find_file_system(path: Path) -> str | None:
    """Return the type of the file system that holds the path: a tmpfs is faster than a disk."""
    best, file_system = "", None
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount_point, kind, *_ = line.split()
        if path.is_relative_to(mount_point) and len(mount_point) >= len(best):
            best, file_system = mount_point, kind
    return file_system


def log_progress(text: str) -> None:
    console.print(f"[dim]{datetime.now(UTC):%H:%M:%S}[/dim] {text}", highlight=False)


def format_value(value: Any) -> str:
    """Return a figure as it is printed in a table: of several rounds, the median and the range."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict) and "median" in value:
        if len(value["rounds"]) < 2:
            return format_value(value["median"])
        return f"{format_value(value['median'])} ({format_value(value['min'])}–{format_value(value['max'])})"
    if isinstance(value, float) and abs(value) < 100:
        return f"{value:g}"
    return f"{value:,.0f}" if isinstance(value, int | float) else str(value)


@dataclass
class Report:
    """The figures of a run, collected while it goes on."""

    benchmark: str
    options: dict[str, Any]
    on: dict[str, Any] = field(default_factory=describe_machine)
    figures: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    started_at: str = field(default_factory=lambda: f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}")
    _tables: list[Table] = field(default_factory=list)

    def add_note(self, text: str) -> None:
        self.notes.append(text)

    def add_table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        table = Table(title=title, title_justify="left")
        for number, column in enumerate(columns):
            table.add_column(column, justify="right" if number else "left")
        for row in rows:
            table.add_row(*(format_value(value) for value in row))
        self._tables.append(table)

    def to_json(self) -> str:
        return json.dumps(
            {
                "benchmark": self.benchmark,
                "started_at": self.started_at,
                "on": self.on,
                "options": self.options,
                "figures": self.figures,
                "notes": self.notes,
            }
        )

    def publish(self, *, save: bool) -> None:
        """Print the tables, the notes and the JSON line, and with `save` write the line to benchmarks/results/."""
        for table in self._tables:
            console.print(table)
        for note in self.notes:
            console.print(f"· {note}", highlight=False)
        facts = ", ".join(f"{name} {value}" for name, value in self.on.items() if value is not None)
        console.print(f"[dim]{facts}[/dim]", highlight=False)
        print(self.to_json(), flush=True)
        if save:
            RESULTS.mkdir(exist_ok=True)
            path = RESULTS / f"{self.benchmark}-{self.on.get('database', 'sqlite')}.json"
            path.write_text(self.to_json() + "\n")
            log_progress(f"saved as {path}")

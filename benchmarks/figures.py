"""Numbers, how they are summed up, and how they are shown: one JSON line on stdout, a table on stderr."""

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

# Wide enough for the tables where there is no terminal to ask.
console = Console(stderr=True, width=None if sys.stderr.isatty() else 140)


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that at least this share of all are not above."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def distribution(values: Sequence[float], digits: int = 1) -> dict[str, float | int | None]:
    shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
    found: dict[str, float | int | None] = {"count": len(values)}
    for name, share in shares.items():
        value = percentile(values, share)
        found[name] = None if value is None else round(value, digits)
    return found


def spread(values: Sequence[float | None], digits: int = 1) -> dict[str, Any]:
    """Of the rounds of one run: the median, and how far they lie apart."""
    known = [value for value in values if value is not None]
    if not known:
        return {"median": None, "least": None, "most": None, "rounds": []}
    rounds = [round(value, digits) for value in known]
    return {
        "median": round(statistics.median(known), digits),
        "least": min(rounds),
        "most": max(rounds),
        "rounds": rounds,
    }


def ratio(ours: float | None, theirs: float | None) -> float | None:
    return round(ours / theirs, 3) if ours is not None and theirs else None


def machine() -> dict[str, Any]:
    """What this runs on, and how busy it was before the run."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(memory / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_before": [round(load, 2) for load in os.getloadavg()],
        "commit": _commit(),
    }


def _commit() -> str | None:
    """With a star when the working tree is not what was committed."""
    asked = subprocess.run(
        ["git", "describe", "--always", "--dirty=*"],
        cwd=RESULTS.parent,
        env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        capture_output=True,
        text=True,
    )
    return asked.stdout.strip() or None


def file_system(path: Path) -> str | None:
    """The type of what holds this path: figures of a tmpfs are not those of a disk."""
    best, found = "", None
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mounted, kind, *_ = line.split()
        if path.is_relative_to(mounted) and len(mounted) >= len(best):
            best, found = mounted, kind
    return found


def say(what: str) -> None:
    console.print(f"[dim]{datetime.now(UTC):%H:%M:%S}[/dim] {what}", highlight=False)


def shown(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict) and "median" in value:
        if len(value["rounds"]) < 2:
            return shown(value["median"])
        return f"{shown(value['median'])} ({shown(value['least'])}–{shown(value['most'])})"
    if isinstance(value, float) and abs(value) < 100:
        return f"{value:g}"
    return f"{value:,.0f}" if isinstance(value, int | float) else str(value)


@dataclass
class Report:
    """The figures of a run, gathered while it goes on."""

    benchmark: str
    options: dict[str, Any]
    on: dict[str, Any] = field(default_factory=machine)
    figures: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    started_at: str = field(default_factory=lambda: f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}")
    _tables: list[Table] = field(default_factory=list)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        table = Table(title=title, title_justify="left")
        for number, column in enumerate(columns):
            table.add_column(column, justify="right" if number else "left")
        for row in rows:
            table.add_row(*(shown(value) for value in row))
        self._tables.append(table)

    def line(self) -> str:
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
        for table in self._tables:
            console.print(table)
        for note in self.notes:
            console.print(f"· {note}", highlight=False)
        facts = ", ".join(f"{name} {value}" for name, value in self.on.items() if value is not None)
        console.print(f"[dim]{facts}[/dim]", highlight=False)
        print(self.line(), flush=True)
        if save:
            RESULTS.mkdir(exist_ok=True)
            path = RESULTS / f"{self.benchmark}-{self.on.get('database', 'sqlite')}.json"
            path.write_text(self.line() + "\n")
            say(f"saved as {path}")

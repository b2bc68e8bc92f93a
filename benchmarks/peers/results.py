"""Results of a comparison: one JSON file per run of the program, written after each measurement."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.report import describe_machine, summarize_rounds

FOLDER = Path(__file__).resolve().parent / "results"

Rounds = dict[str, dict[str, list[dict[str, float | None]]]]


@dataclass
class Results:
    """Figures by workload, candidate and round."""

    options: dict[str, Any]
    candidates: dict[str, dict[str, Any]]
    path: Path
    on: dict[str, Any] = field(default_factory=describe_machine)
    started_at: str = field(default_factory=lambda: f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}")
    figures: Rounds = field(default_factory=dict)
    failures: list[dict[str, str]] = field(default_factory=list)

    def add(self, workload: str, candidate: str, figures: Mapping[str, float | None]) -> None:
        self.figures.setdefault(workload, {}).setdefault(candidate, []).append(dict(figures))

    def add_failure(self, workload: str, candidate: str, reason: str) -> None:
        self.failures.append({"workload": workload, "candidate": candidate, "reason": reason})

    def to_json(self) -> str:
        document = asdict(self)
        del document["path"]
        return json.dumps({"benchmark": "peers", **document})

    def save(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(self.to_json() + "\n")

    def summarize(self, workload: str, candidate: str, figure: str) -> dict[str, Any] | None:
        """Return the median and the range of a figure over the rounds, or None if it was not measured."""
        rounds = self.figures.get(workload, {}).get(candidate, [])
        summary = summarize_rounds([figures.get(figure) for figures in rounds], 2)
        return None if summary["median"] is None else summary


def load_results(path: Path) -> Results:
    document = json.loads(path.read_text())
    if document.pop("benchmark", None) != "peers":
        raise ValueError(f"{path} is not a result of benchmarks.peers")
    return Results(**document, path=path)


def find_newest_results(folder: Path = FOLDER) -> Path:
    """Return the newest file. Raise FileNotFoundError if there is none."""
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise FileNotFoundError(f"there are no results in {folder}; run `make bench NAME=peers`")
    return paths[-1]


def build_path(folder: Path) -> Path:
    return folder / f"{datetime.now(UTC):%Y%m%d-%H%M%S}.json"

"""Totals of the attempts of an engine, by outcome and duration, for /metrics."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable

from eventservice.db.totals import add_to_totals, read_totals
from execution.outcome import Outcome, Responded

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
PREFIX = "attempts/"
SUM = "sum"


class AttemptTotals:
    """Attempts that have ended and are not in the database's totals yet. Those of a killed process are not counted."""

    def __init__(self) -> None:
        self._pending: Counter[str] = Counter()
        self._seconds: dict[str, float] = {}

    def count(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            kind = f"{outcome.status // 100}xx" if isinstance(outcome, Responded) else outcome.kind.value
            seconds = outcome.timings.total_ms / 1000
            self._pending[f"{PREFIX}{kind}/{bisect_left(BUCKETS, seconds)}"] += 1
            total = f"{PREFIX}{kind}/{SUM}"
            self._seconds[total] = self._seconds.get(total, 0.0) + seconds

    def flush(self) -> None:
        """Add them to the database's totals."""
        if self._pending:
            add_to_totals({**self._pending, **self._seconds})
            self._pending.clear()
            self._seconds.clear()


def read_attempt_totals() -> dict[str, tuple[list[float], float]]:
    """Return, by outcome, how many attempts ended within each of BUCKETS and how many took longer, and all their seconds."""
    found: dict[str, tuple[list[float], float]] = {}
    for name, value in read_totals(PREFIX).items():
        kind, _, place = name.partition("/")
        counts, seconds = found.get(kind, ([0.0] * (len(BUCKETS) + 1), 0.0))
        if place == SUM:
            seconds = value
        else:
            counts[int(place)] = value
        found[kind] = counts, seconds
    return found

"""The thresholds by which several checks, and the charts of the dashboard, rate a value."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Generic, TypeVar

from eventservice.kernel.findings import Severity

V = TypeVar("V", float, timedelta)


@dataclass(frozen=True, slots=True)
class Threshold(Generic[V]):
    """The value above which something deserves a warning, and the one above which it is an error."""

    warning: V
    error: V

    def rate(self, value: V) -> Severity:
        if value > self.error:
            return Severity.ERROR
        return Severity.WARNING if value > self.warning else Severity.OK


# Due calls start within milliseconds, and events are published within a second.
OVERDUE = Threshold(timedelta(seconds=10), timedelta(minutes=1))
OUTBOX_LAG = Threshold(timedelta(seconds=10), timedelta(minutes=1))
# Ended attempts are written to a timer store within seconds.
STORE_LAG = Threshold(timedelta(seconds=30), timedelta(minutes=5))
START_DELAY_MS = Threshold(1_000.0, 10_000.0)  # the 95th percentile
FAILED_SHARE = Threshold(0.05, 0.2)  # of the calls that ended

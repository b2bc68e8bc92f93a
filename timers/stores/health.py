"""The diagnosis of a timer store, for `manage.py timer_store check` and `doctor`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from eventservice.kernel.findings import Finding, Severity, check
from eventservice.kernel.text import end_sentence
from timers.stores.clocks import MAX_CLOCK_SKEW, measure_skew
from timers.stores.port import TimerStore, TimerStoreError


def examine_store(name: str, store: TimerStore, read_now: Callable[[], datetime]) -> list[Finding]:
    """Return the findings on a store, also if it cannot be reached. `read_now` returns the time of the relational database."""
    try:
        return [*store.check(), _check_clock(name, store, read_now)]
    except TimerStoreError as error:
        return [
            Finding(
                "timer_store_server",
                Severity.ERROR,
                end_sentence(str(error)),
                f"Start the server, or correct the URL of {name} in TIMER_STORES.",
            )
        ]


def _check_clock(name: str, store: TimerStore, read_now: Callable[[], datetime]) -> Finding:
    skew = measure_skew(store, read_now)
    is_right = abs(skew) <= MAX_CLOCK_SKEW
    text = f"{name}: its clock differs by {skew.total_seconds():+.3f} s from the database's"
    remedy = "Run chrony or another NTP client on both servers: timers become due by the database's clock."
    return check("timer_store_clock", is_right, text, remedy)

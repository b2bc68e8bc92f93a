"""What is wrong with a timer store, for `manage.py timer_store check` and `doctor`."""

from __future__ import annotations

from datetime import datetime, timedelta

from eventservice.kernel.findings import Finding, Severity, check
from eventservice.kernel.text import end_sentence
from timers.stores.port import TimerStore, TimerStoreError

MAX_CLOCK_SKEW = timedelta(seconds=1)


def examine_store(name: str, store: TimerStore, now: datetime) -> list[Finding]:
    """Return the findings on a store, also if it cannot be reached. `now` is the time of the relational database."""
    try:
        skew = store.read_clock() - now
        return [*store.check(), _check_clock(name, skew)]
    except TimerStoreError as error:
        return [
            Finding(
                "timer_store_server",
                Severity.ERROR,
                end_sentence(str(error)),
                f"Start the server, or correct the URL of {name} in TIMER_STORES.",
            )
        ]


def _check_clock(name: str, skew: timedelta) -> Finding:
    text = f"{name}: its clock differs by {skew.total_seconds():+.3f} s from the database's"
    remedy = "Run chrony or another NTP client on both servers: timers become due by the database's clock."
    return check("timer_store_clock", abs(skew) <= MAX_CLOCK_SKEW, text, remedy)

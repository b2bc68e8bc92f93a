"""The comparison of a store's clock with that of the relational database."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from timers.stores.port import TimerStore

MAX_CLOCK_SKEW = timedelta(seconds=1)


def measure_skew(store: TimerStore, read_now: Callable[[], datetime]) -> timedelta:
    """Return how far the store's clock is ahead, at least. What the statements took is not taken for a difference."""
    before = read_now()
    clock = store.read_clock()
    after = read_now()
    doubt = (after - before) / 2
    skew = clock - (before + doubt)
    if abs(skew) <= doubt:
        return timedelta()
    return skew - doubt if skew > timedelta() else skew + doubt

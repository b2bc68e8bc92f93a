"""Noticing that another process has written, without querying the tables.

Where the database cannot be asked cheaply, the answer is "perhaps": often while there is work, and seldom while there
is none.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod

# The interval between looks while there is work.
MIN_INTERVAL_SECONDS = 0.02


class ChangeWatch(ABC):
    """Tells a loop when it is worth looking for work, and how long it may sleep until then."""

    @abstractmethod
    def has_changed(self) -> bool:
        """Return whether another process may have written since this was asked last."""

    @abstractmethod
    def record_work(self) -> None:
        """Note that there was something to do: more is likely to come soon."""

    @property
    @abstractmethod
    def pause(self) -> float:
        """Return the seconds until it is worth asking again."""

    def close(self) -> None:  # noqa: B027 (most watches hold nothing)
        """End the watch, which releases its resources after a while."""


class PollingChangeWatch(ChangeWatch):
    """Answers "perhaps" at growing intervals, up to `max_interval` seconds, and at short ones after work."""

    def __init__(self, max_interval: float) -> None:
        self._max_interval = max_interval
        self._interval = MIN_INTERVAL_SECONDS
        self._ask_at = 0.0

    def has_changed(self) -> bool:
        now = time.monotonic()
        if now < self._ask_at:
            return False
        self._ask_at = now + self._interval
        self._interval = min(self._max_interval, self._interval * 1.5)
        return True

    def record_work(self) -> None:
        self._interval = MIN_INTERVAL_SECONDS

    @property
    def pause(self) -> float:
        return max(0.0, self._ask_at - time.monotonic())

"""When a failed attempt is made again: exponential backoff with full jitter, bounded in number and in time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from eventservice.kernel.backoff import full_jitter

# Seconds between attempts that the other side asks for.
MIN_PAUSE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Seconds throughout. By default a call has one attempt."""

    max_attempts: int = 1
    max_attempts_duration: float | None = None
    initial_interval: float = 30.0
    backoff_multiplier: float = 2.0
    max_interval: float = 3600.0

    @classmethod
    def from_stored(cls, stored: Mapping[str, Any] | None) -> RetryPolicy:
        return cls(**stored) if stored else cls()

    def to_stored(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    def next_at(
        self, now: datetime, *, failures: int, first_started_at: datetime, not_before: float | None = None
    ) -> datetime | None:
        """The due time of the next attempt after `failures` failed ones; None: there is none.

        `not_before` is what the other side asked for (Retry-After), in seconds.
        """
        if failures >= self.max_attempts:
            return None
        delay = max(self._jittered(failures), not_before or 0.0)
        due = now + timedelta(seconds=delay)
        ends = self.max_attempts_duration
        if ends is not None and due > first_started_at + timedelta(seconds=ends):
            return None
        return due

    def asked_at(self, now: datetime, asked: datetime, *, failures: int) -> datetime:
        """A time that the other side names goes before the policy, and has no limit in number.

        One that has passed says nothing about when: then it is the policy's interval, or a receiver with a wrong
        clock would be called without pause for ever.
        """
        delay = (asked - now).total_seconds() if asked > now else self._jittered(failures)
        return now + timedelta(seconds=max(delay, MIN_PAUSE_SECONDS))

    def _jittered(self, failures: int) -> float:
        return full_jitter(failures, self.initial_interval, self.max_interval, self.backoff_multiplier)

"""When a failed attempt is retried: exponential backoff with full jitter, bounded in number and in time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from eventservice.kernel.backoff import full_jitter

# Between attempts that the target asks for.
MIN_PAUSE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how long a call is retried. All times are in seconds. By default a call has one attempt."""

    max_attempts: int = 1
    max_attempts_duration: float | None = None
    initial_interval: float = 30.0
    backoff_multiplier: float = 2.0
    max_interval: float = 3600.0

    @classmethod
    def from_stored(cls, stored: Mapping[str, Any] | None) -> RetryPolicy:
        return cls(**stored) if stored else cls()

    def to_stored(self) -> dict[str, int | float | None]:
        return {name: getattr(self, name) for name in self.__slots__}

    def compute_next_at(
        self, now: datetime, *, failures: int, first_started_at: datetime, not_before: float | None = None
    ) -> datetime | None:
        """Return when the attempt after `failures` failed ones is due, or None if there is none.

        `not_before` is the delay in seconds that the target asked for (Retry-After).
        """
        if failures >= self.max_attempts:
            return None
        delay = max(self._compute_delay(failures), not_before or 0.0)
        due = now + timedelta(seconds=delay)
        ends = self.max_attempts_duration
        if ends is not None and due > first_started_at + timedelta(seconds=ends):
            return None
        return due

    def compute_requested_at(self, now: datetime, requested: datetime, *, failures: int) -> datetime:
        """Return when an attempt that the target requested for a certain time is due. Such attempts are not limited in
        number.

        If that time has passed, the policy's interval is used: otherwise a target with a wrong clock would be called
        without pause, forever.
        """
        delay = (requested - now).total_seconds() if requested > now else self._compute_delay(failures)
        return now + timedelta(seconds=max(delay, MIN_PAUSE_SECONDS))

    def _compute_delay(self, failures: int) -> float:
        return full_jitter(failures, self.initial_interval, self.max_interval, self.backoff_multiplier)

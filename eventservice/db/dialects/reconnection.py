"""A pause between attempts to connect to a server that does not answer.

Each attempt takes its whole time limit. Without a pause, requests would queue up behind each other's attempts in a web
process, and the last ones would wait for minutes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PAUSE_SECONDS = 2.0
# An attempt that failed sooner was refused, and cost nothing.
MIN_SILENCE_SECONDS = 1.0


class Reconnection:
    """The attempts of one connection to be made."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._fails_until = 0.0

    @contextmanager
    def attempt(self, build_error: Callable[[str], Exception]) -> Iterator[None]:
        """Connect within this block. Raise the error at once while the server is known not to answer."""
        started_at = self._clock()
        if started_at < self._fails_until:
            raise build_error("connection failed: the server did not answer the last attempt, moments ago")
        try:
            yield
        except Exception:
            if self._clock() - started_at >= MIN_SILENCE_SECONDS:
                self._fails_until = self._clock() + PAUSE_SECONDS
            raise

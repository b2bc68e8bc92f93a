"""Requests do not queue up behind attempts to connect to a server that does not answer."""

from __future__ import annotations

from eventservice.db.dialects.reconnection import MIN_SILENCE_SECONDS, PAUSE_SECONDS, Reconnection
from tests.orchestration.support import FakeClock


def fail_after(reconnection: Reconnection, clock: FakeClock, seconds: float) -> str:
    """Let an attempt fail after that time, and return what is raised."""
    try:
        with reconnection.attempt(RuntimeError):
            clock.advance(seconds)
            raise TimeoutError("silent")
    except (TimeoutError, RuntimeError) as raised:
        return type(raised).__name__


def test_after_an_attempt_that_took_long_the_next_ones_fail_at_once() -> None:
    clock = FakeClock()
    reconnection = Reconnection(clock)
    assert fail_after(reconnection, clock, MIN_SILENCE_SECONDS) == "TimeoutError"
    assert fail_after(reconnection, clock, 0) == "RuntimeError"
    clock.advance(PAUSE_SECONDS)
    assert fail_after(reconnection, clock, MIN_SILENCE_SECONDS) == "TimeoutError"


def test_an_attempt_that_is_refused_may_be_repeated_at_once() -> None:
    clock = FakeClock()
    reconnection = Reconnection(clock)
    assert [fail_after(reconnection, clock, 0.1) for _ in range(3)] == ["TimeoutError"] * 3

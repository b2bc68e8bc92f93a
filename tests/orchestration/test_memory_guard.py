"""Batches shrink when they do not fit into memory, and grow again; a call that never fits is found."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

import pytest
from django.db import IntegrityError, OperationalError

from eventservice.kernel.ids import new_id
from orchestration.engine.memory import (
    BATCHES_BEFORE_GROWTH,
    MAX_FAILURES,
    POSTPONE_SECONDS,
    UNLIMITED,
    MemoryGuard,
    is_out_of_memory,
)
from timers.port import HeldBack, Timer

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LARGE, SMALL = 900_000, 100


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def memory(clock: Clock) -> MemoryGuard:
    return MemoryGuard(clock)


def build_timer(request_bytes: int) -> Timer:
    return Timer(UUID(int=1), new_id(), new_id(), NOW, 0, "example.com", request_bytes)


def admit(memory: MemoryGuard, *timers: Timer) -> list[bool]:
    guarded = memory.guard(lambda timer: True)
    return [guarded(timer) for timer in timers]


def test_the_next_batch_is_half_as_large(memory: MemoryGuard) -> None:
    timers = [build_timer(LARGE) for _ in range(5)]
    assert memory.record_failure(timers, 100) is None
    assert admit(memory, *timers) == [True, True, False, False, False]


def test_small_calls_are_not_limited(memory: MemoryGuard) -> None:
    large, small = [build_timer(LARGE) for _ in range(2)], [build_timer(SMALL) for _ in range(5)]
    memory.record_failure([*large, *small], 100)
    assert admit(memory, *large, *small) == [True, False, *[True] * 5]


def test_small_calls_behind_many_large_ones_are_searched_for_next(memory: MemoryGuard) -> None:
    large = [build_timer(LARGE) for _ in range(2)]
    memory.record_failure(large, 100)
    assert memory.restrict(HeldBack()) == HeldBack()
    admit(memory, *large)
    restricted = memory.restrict(HeldBack())
    assert restricted.large == HeldBack({large[0].tenant_id})
    assert memory.restrict(HeldBack()) == HeldBack()


def test_small_calls_that_do_not_fit_are_limited(memory: MemoryGuard) -> None:
    small = [build_timer(SMALL) for _ in range(4)]
    memory.record_failure(small, 100)
    assert admit(memory, *small) == [True, True, False, False]


def test_a_search_that_does_not_fit_finds_fewer(memory: MemoryGuard) -> None:
    memory.record_failure([], 100)
    assert memory.max_calls == 50


def test_batches_grow_again_when_many_have_fitted(memory: MemoryGuard) -> None:
    memory.record_failure([build_timer(LARGE)] * 4, 100)
    for _ in range(BATCHES_BEFORE_GROWTH):
        memory.record_fit([object()])
    assert memory.max_calls == 4
    for _ in range(30 * BATCHES_BEFORE_GROWTH):
        memory.record_fit([object()])
    assert memory.max_calls == UNLIMITED


def test_an_empty_batch_shows_nothing(memory: MemoryGuard) -> None:
    memory.record_failure([build_timer(LARGE)] * 4, 100)
    for _ in range(2 * BATCHES_BEFORE_GROWTH):
        memory.record_fit([])
    assert memory.max_calls == 2


def test_a_large_call_that_does_not_fit_alone_lets_others_pass_and_fails_in_the_end(
    memory: MemoryGuard, clock: Clock
) -> None:
    large, small = build_timer(LARGE), build_timer(SMALL)
    for _ in range(MAX_FAILURES - 1):
        assert memory.record_failure([large], 100) is None
        assert admit(memory, large, small) == [False, True]
        clock.now += POSTPONE_SECONDS
        assert admit(memory, large, small) == [True, True]
    assert memory.record_failure([large], 100) == large


def test_a_small_call_is_not_to_blame(memory: MemoryGuard) -> None:
    small = build_timer(SMALL)
    assert {memory.record_failure([small], 100) for _ in range(3 * MAX_FAILURES)} == {None}


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (OperationalError("out of memory for query result"), True),
        (OperationalError("database is locked"), False),
        (IntegrityError("out of memory"), False),
    ],
)
def test_errors_of_drivers_are_recognized(error: Exception, expected: bool) -> None:
    assert is_out_of_memory(error) is expected

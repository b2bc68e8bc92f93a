"""A cached value is loaded again when it is too old, and the number of values is bounded."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from eventservice.kernel import ttl_cache
from eventservice.kernel.ttl_cache import TTLCache, clear_caches


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(ttl_cache, "time", clock)
    return clock


@pytest.fixture
def numbers() -> Iterator[int]:
    return count(1)


def test_a_value_is_loaded_once_until_it_is_too_old(clock: Clock, numbers: Iterator[int]) -> None:
    cache = TTLCache[str, int](seconds=5)
    assert [cache.get("a", numbers.__next__) for _ in range(3)] == [1, 1, 1]
    clock.now += 4.9
    assert cache.get("a", numbers.__next__) == 1
    clock.now += 0.1
    assert cache.get("a", numbers.__next__) == 2


def test_each_key_has_its_own_value(numbers: Iterator[int]) -> None:
    cache = TTLCache[str, int](seconds=5)
    assert [cache.get(key, numbers.__next__) for key in "abab"] == [1, 2, 1, 2]


def test_none_is_not_kept(clock: Clock) -> None:
    values = iter(["valid", None, None, "valid again"])
    cache = TTLCache[str, str | None](seconds=5)
    cache.get("a", values.__next__)
    clock.now += 5
    assert [cache.get("a", values.__next__) for _ in range(3)] == [None, None, "valid again"]


def test_a_failed_load_keeps_nothing(numbers: Iterator[int]) -> None:
    cache = TTLCache[str, int](seconds=5)
    with pytest.raises(ZeroDivisionError):
        cache.get("a", lambda: 1 // 0)
    assert cache.get("a", numbers.__next__) == 1


def test_a_full_cache_begins_again(numbers: Iterator[int]) -> None:
    cache = TTLCache[str, int](seconds=5, max_size=2)
    assert [cache.get(key, numbers.__next__) for key in "abca"] == [1, 2, 3, 4]


def test_all_caches_are_cleared_at_once(numbers: Iterator[int]) -> None:
    caches = [TTLCache[str, int](seconds=5) for _ in range(2)]
    first = [cache.get("a", numbers.__next__) for cache in caches]
    clear_caches()
    assert [cache.get("a", numbers.__next__) for cache in caches] == [number + 2 for number in first]

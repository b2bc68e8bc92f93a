"""Values that other processes may change, kept in this process for a few seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar
from weakref import WeakSet

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_caches: WeakSet[TTLCache[Hashable, object]] = WeakSet()


class TTLCache(Generic[K, V]):
    """Up to `max_size` values, each of which is loaded again when it is `seconds` old."""

    def __init__(self, seconds: float, max_size: int = 10_000) -> None:
        self._seconds = seconds
        self._max_size = max_size
        self._values: dict[K, tuple[float, V]] = {}
        _caches.add(self)  # type: ignore[arg-type]

    def get(self, key: K, load: Callable[[], V]) -> V:
        """Return the value of a key, which `load` returns if there is none or it is too old. None is not kept."""
        now = time.monotonic()
        found = self._values.get(key)
        if found is not None and now - found[0] < self._seconds:
            return found[1]
        value = load()
        if value is None:
            self._values.pop(key, None)
        else:
            if len(self._values) >= self._max_size:
                self._values.clear()
            self._values[key] = now, value
        return value

    def clear(self) -> None:
        self._values.clear()


def clear_caches() -> None:
    """Clear all caches of this process: tests call this, because rows do not outlive a test and caches do."""
    for cache in list(_caches):
        cache.clear()

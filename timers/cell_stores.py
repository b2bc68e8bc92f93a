"""The timer stores of `TIMER_STORES` as this cell sees them: one client of each, which the threads of a process share."""

from __future__ import annotations

import threading

from django.conf import settings

from timers.cell import get_cell_id
from timers.stores.factory import build_store
from timers.stores.port import StoreUnavailable, TimerStore


class _CellStores:
    """A cache that builds each store once, also if several threads need it first at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stores: dict[str, TimerStore] = {}

    def __call__(self, name: str) -> TimerStore:
        """Return a store by its name. Raise StoreUnavailable if it is not configured, or cannot be used."""
        with self._lock:
            if name not in self._stores:
                self._stores[name] = _build_cell_store(name)
            return self._stores[name]

    def cache_clear(self) -> None:
        with self._lock:
            self._stores.clear()


get_cell_store = _CellStores()


def _build_cell_store(name: str) -> TimerStore:
    for spec in settings.TIMER_STORES:
        if spec.name == name:
            try:
                return build_store(spec, str(get_cell_id()))
            except ValueError as problem:
                raise StoreUnavailable(f"TIMER_STORES: {problem}") from problem
    raise StoreUnavailable(f"TIMER_STORES has no store {name!r}")

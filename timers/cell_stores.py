"""The timer stores of `TIMER_STORES` as this cell sees them: one client of each, which the threads of a process share."""

from __future__ import annotations

from functools import cache

from django.conf import settings

from timers.cell import get_cell_id
from timers.stores.factory import build_store
from timers.stores.port import StoreUnavailable, TimerStore


@cache
def get_cell_store(name: str) -> TimerStore:
    """Return a store by its name. Raise StoreUnavailable if it is not configured, or cannot be used."""
    for spec in settings.TIMER_STORES:
        if spec.name == name:
            try:
                return build_store(spec, str(get_cell_id()))
            except ValueError as problem:
                raise StoreUnavailable(f"TIMER_STORES: {problem}") from problem
    raise StoreUnavailable(f"TIMER_STORES has no store {name!r}")

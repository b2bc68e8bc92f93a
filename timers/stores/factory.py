"""Timer stores by their items in `TIMER_STORES`."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import cast

from timers.stores.port import TimerStore
from timers.stores.store_spec import LIBRARIES, StoreSpec


def build_store(spec: StoreSpec, cell: str) -> TimerStore:
    """Build a store as a cell sees it, without connecting.

    Raise ValueError, without quoting the URL, if it cannot be used or a client library is not installed.
    """
    check_libraries(spec)
    module = import_module(f"timers.stores.{spec.kind}.store")
    try:
        return cast(TimerStore, module.build_store(spec, cell))
    except ValueError as problem:
        raise ValueError(f"{spec.name}: {problem}") from None


def check_libraries(spec: StoreSpec) -> None:
    """Raise ValueError if a library that the store needs is not installed."""
    for library in LIBRARIES[spec.scheme]:
        if find_spec(library) is None:
            raise ValueError(f"{spec.name}: the Python package {library!r} is not installed")

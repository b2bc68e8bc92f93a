"""A timer store in memory among those of `TIMER_STORES`, for tests of what the processes of a cell do with stores."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from types import ModuleType
from unittest.mock import patch

from django.test import override_settings

from eventservice.db.now import db_now
from tests.contracts.timer_stores.memory_store import MemoryTables, MemoryTimerStore
from timers.cell_stores import get_cell_store
from timers.stores.port import StoreUnavailable, TimerStore
from timers.stores.store_spec import LIBRARIES, STORES, StoreSpec

SCHEME = "memory"
FLEET = StoreSpec("fleet", SCHEME, "memory://localhost/fleet")
# Nothing listens there.
UNREACHABLE = StoreSpec.parse("away=postgresql+psycopg://user:s3cret@127.0.0.1:1/db")


class MemoryFleet:
    """The server of the store `fleet`: its tables, and whether it can be reached."""

    def __init__(self) -> None:
        self.tables = MemoryTables()
        self.is_available = True

    def build_store(self, spec: StoreSpec, cell: str) -> TimerStore:
        return _FleetStore(self, cell)


class _FleetStore(MemoryTimerStore):
    """A store whose clock is the database's."""

    def __init__(self, fleet: MemoryFleet, cell: str) -> None:
        super().__init__(fleet.tables, cell)
        self._fleet = fleet

    def __getattribute__(self, name: str) -> object:
        if not name.startswith("_") and name != "close" and not self._fleet.is_available:
            raise StoreUnavailable("fleet: no server can be reached")
        return super().__getattribute__(name)

    def read_clock(self) -> datetime:
        return db_now()


@contextmanager
def using_memory_fleet() -> Iterator[MemoryFleet]:
    """Configure the store `fleet`, which is in memory, and the store `away`, which cannot be reached."""
    fleet, module, name = MemoryFleet(), ModuleType("store"), f"timers.stores.{SCHEME}.store"
    module.build_store = fleet.build_store  # type: ignore[attr-defined]
    with (
        patch.dict(STORES, {SCHEME: SCHEME}),
        patch.dict(LIBRARIES, {SCHEME: ()}),
        override_settings(TIMER_STORES=[FLEET, UNREACHABLE]),
    ):
        # patch.dict would also remove what is imported meanwhile.
        sys.modules[name] = module
        get_cell_store.cache_clear()
        try:
            yield fleet
        finally:
            del sys.modules[name]
            get_cell_store.cache_clear()

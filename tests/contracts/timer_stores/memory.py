"""The store in memory, for the contract suite."""

from __future__ import annotations

from tests.contracts.timer_stores.base import CELL, StoreUnderTest
from tests.contracts.timer_stores.memory_store import MAX_BYTES, MemoryTables, MemoryTimerStore
from timers.stores.port import TimerStore


class MemoryStoreUnderTest(StoreUnderTest):
    too_many_bytes = MAX_BYTES + 1

    def __init__(self) -> None:
        self.tables = MemoryTables()

    def build(self, cell: str = CELL) -> TimerStore:
        return MemoryTimerStore(self.tables, cell)

    def end_test(self) -> None:
        self.tables = MemoryTables()

    def close(self) -> None:
        """Do nothing: it vanishes by itself."""

"""Every timer store, for the contract suite. A new one joins by one line in STORES."""

from __future__ import annotations

from collections.abc import Callable

from tests.contracts.timer_stores.base import StoreUnderTest
from tests.contracts.timer_stores.memory import MemoryStoreUnderTest

# By the service that it runs on (tools/services).
STORES: dict[str, Callable[[], StoreUnderTest]] = {
    "memory": MemoryStoreUnderTest,
}

__all__ = ["STORES", "StoreUnderTest"]

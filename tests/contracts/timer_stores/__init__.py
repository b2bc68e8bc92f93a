"""Every timer store, for the contract suite. A new one joins by one line in STORES."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tests.contracts.timer_stores.base import StoreUnderTest
from tests.contracts.timer_stores.memory import MemoryStoreUnderTest
from tests.contracts.timer_stores.sql import SqlStoreUnderTest

# By the service that it runs on (tools/services).
STORES: dict[str, Callable[[], StoreUnderTest]] = {
    "memory": MemoryStoreUnderTest,
    "postgres": partial(SqlStoreUnderTest, "postgres", "postgresql+psycopg"),
    "postgres18": partial(SqlStoreUnderTest, "postgres18", "postgresql+psycopg"),
    "mysql": partial(SqlStoreUnderTest, "mysql", "mysql+pymysql"),
    "mariadb": partial(SqlStoreUnderTest, "mariadb", "mariadb+pymysql"),
    "tidb": partial(SqlStoreUnderTest, "tidb", "tidb+pymysql"),
}

__all__ = ["STORES", "StoreUnderTest"]

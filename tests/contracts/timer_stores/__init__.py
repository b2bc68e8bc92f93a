"""Every timer store, for the contract suite. A new one joins by one line in STORES."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import pytest
from _pytest.mark import ParameterSet

from tests.contracts.timer_stores.base import StoreUnderTest
from tests.contracts.timer_stores.cassandra import CassandraStoreUnderTest
from tests.contracts.timer_stores.dynamodb import DynamoDbStoreUnderTest
from tests.contracts.timer_stores.memory import MemoryStoreUnderTest
from tests.contracts.timer_stores.mongodb import MongoStoreUnderTest
from tests.contracts.timer_stores.sql import SqlStoreUnderTest

# By the service that it runs on (tools/services).
STORES: dict[str, Callable[[], StoreUnderTest]] = {
    "memory": MemoryStoreUnderTest,
    "postgres": partial(SqlStoreUnderTest, "postgres", "postgresql+psycopg"),
    "postgres18": partial(SqlStoreUnderTest, "postgres18", "postgresql+psycopg"),
    "mysql": partial(SqlStoreUnderTest, "mysql", "mysql+pymysql"),
    "mariadb": partial(SqlStoreUnderTest, "mariadb", "mariadb+pymysql"),
    "mongodb": MongoStoreUnderTest,
    "dynamodb": DynamoDbStoreUnderTest,
    "cassandra": CassandraStoreUnderTest,
    "tidb": partial(SqlStoreUnderTest, "tidb", "tidb+pymysql"),
}


def list_parameters(names: Iterable[str]) -> list[ParameterSet]:
    """Return a parameter for each store. One process of pytest-xdist runs all tests of a store, in one database."""
    return [pytest.param(name, marks=pytest.mark.xdist_group(f"timer store {name}")) for name in names]


__all__ = ["STORES", "StoreUnderTest", "list_parameters"]

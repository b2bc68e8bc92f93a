"""The fixtures of a test module about one kind of timer store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, TypeVar

import pytest

from tests.contracts.timer_stores.base import CELL, StoreUnderTest
from timers.stores.factory import build_store
from timers.stores.port import TimerStore
from timers.stores.store_spec import StoreSpec

S = TypeVar("S", bound=StoreUnderTest)


class StoreFixtures(NamedTuple):
    """`server` has a table for the module, `stores` empties it after a test, and `new_stores` is a server without it."""

    server: Any
    stores: Any
    store: Any
    new_stores: Any


def build_fixtures(kind: Callable[[], S]) -> StoreFixtures:
    """Return fixtures that the module assigns to variables with their names."""

    @pytest.fixture(scope="module")
    def server() -> Iterator[S]:
        server = kind()
        server.build().migrate()
        yield server
        server.close_built()
        server.close()

    @pytest.fixture
    def stores(server: S) -> Iterator[S]:
        yield server
        server.end_test()

    @pytest.fixture
    def store(stores: S) -> TimerStore:
        return stores.build()

    @pytest.fixture
    def new_stores() -> Iterator[S]:
        stores = kind()
        yield stores
        stores.close_built()
        stores.close()

    return StoreFixtures(server, stores, store, new_stores)


def build_faulty_fixtures(
    run: Callable[[Any], AbstractContextManager[Any]], build_spec: Callable[[Any, Any], StoreSpec]
) -> tuple[Any, Any]:
    """Return the fixtures `faulty` and `faulty_store`: a server in front of that of `stores`, and a store that uses it."""

    @pytest.fixture
    def faulty(stores: StoreUnderTest) -> Iterator[Any]:
        with run(stores) as server:
            yield server

    @pytest.fixture
    def faulty_store(stores: StoreUnderTest, faulty: Any) -> Iterator[TimerStore]:
        store = build_store(build_spec(stores, faulty), CELL)
        store.read_clock()
        faulty.forget_requests()
        yield store
        store.close()

    return faulty, faulty_store

"""The behavior that is particular to the timer store on MongoDB."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("pymongo")

from pymongo import MongoClient

from tests.contracts.timer_stores.base import CELL, NOW, build_timer
from tests.contracts.timer_stores.mongodb import MongoStoreUnderTest
from tests.services import require_service
from tests.tcp_proxy import TcpProxy, Trouble
from timers.stores.factory import build_store
from timers.stores.mongodb import store as store_module
from timers.stores.mongodb.store import COLLECTION
from timers.stores.port import OutcomeUnknown, StoreUnavailable, TimerStore
from timers.stores.store_spec import StoreSpec

LONG_SECONDS = 60.0


@pytest.fixture
def stores() -> Iterator[MongoStoreUnderTest]:
    stores = MongoStoreUnderTest()
    stores.build().migrate()
    yield stores
    stores.close_built()
    stores.close()


@pytest.fixture
def proxy() -> Iterator[TcpProxy]:
    server = require_service("mongodb")
    proxy = TcpProxy(server.hostname or "", server.port or 0)
    yield proxy
    proxy.close()


def build_behind(proxy: TcpProxy, stores: MongoStoreUnderTest) -> TimerStore:
    assert stores.spec is not None
    parts = stores.spec.parts._replace(netloc=f"127.0.0.1:{proxy.port}")
    return build_store(replace(stores.spec, url=parts.geturl()), CELL)


def repeat(write: Callable[[], None]) -> None:
    """Write until the client has found the server again: it may wait for an answer that the proxy has swallowed."""
    deadline = time.monotonic() + LONG_SECONDS
    while True:
        try:
            return write()
        except StoreUnavailable:
            assert time.monotonic() < deadline


def test_a_missing_index_is_reported(stores: MongoStoreUnderTest) -> None:
    store = stores.build()
    assert all(finding.is_ok for finding in store.check())
    assert stores.spec is not None
    client: MongoClient[dict[str, object]] = MongoClient(stores.spec.url)
    client.get_default_database()[COLLECTION].drop_indexes()
    client.close()
    (problem,) = [finding for finding in store.check() if not finding.is_ok]
    assert "no unique index (shard_id, row_type, timer_namespace, timer_id)" in problem.text
    assert "no index (shard_id, row_type, timer_execute_at, timer_uuid)" in problem.text
    store.migrate()
    assert all(finding.is_ok for finding in store.check())


@pytest.mark.parametrize("trouble", [Trouble.RESET, Trouble.SWALLOW], ids=lambda trouble: trouble.value)
def test_a_write_without_an_answer_is_reported_and_can_be_repeated(
    stores: MongoStoreUnderTest, proxy: TcpProxy, trouble: Trouble
) -> None:
    store = build_behind(proxy, stores)
    timer = build_timer()
    assert store.get(timer.key) is None
    expected = OutcomeUnknown if trouble is Trouble.SWALLOW else (OutcomeUnknown, StoreUnavailable)
    with proxy.make_trouble(trouble, 0), pytest.raises(expected):
        store.put(timer, None, NOW)
    repeat(lambda: store.put(timer, None, NOW))
    assert stores.build().get(timer.key) == timer
    store.close()


def test_a_server_that_cannot_be_reached_is_unavailable_and_its_password_is_not_shown() -> None:
    store = build_store(StoreSpec.parse("main=mongodb://user:s3cret@127.0.0.1:1/db"), CELL)
    with pytest.raises(StoreUnavailable, match=r"^main: ") as raised:
        store.put(build_timer(), None, NOW)
    assert "s3cret" not in str(raised.value)
    store.close()


def test_threads_that_use_a_store_first_at_once_share_one_client(
    stores: MongoStoreUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients: list[MongoClient[dict[str, object]]] = []

    def build_slowly(*arguments: Any, **options: Any) -> MongoClient[dict[str, object]]:
        time.sleep(0.2)
        clients.append(MongoClient(*arguments, **options))
        return clients[-1]

    monkeypatch.setattr(store_module, "MongoClient", build_slowly)
    store = stores.build()
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda number: store.members(), range(4))) == [[], [], [], []]
    assert len(clients) == 1

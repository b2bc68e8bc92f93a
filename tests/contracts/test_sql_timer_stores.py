"""The behavior that is particular to timer stores in SQL databases, on every server."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("sqlalchemy")

from sqlalchemy import event, inspect, make_url, text
from sqlalchemy.sql.expression import ClauseElement

from tests.contracts.timer_stores import STORES, list_parameters
from tests.contracts.timer_stores.base import ALERTS, CELL, NOW, build_timer, build_timers_of_shard
from tests.contracts.timer_stores.sql import SqlStoreUnderTest
from tests.tcp_proxy import TcpProxy, Trouble
from timers.stores.factory import build_store
from timers.stores.port import OutcomeUnknown, StoreUnavailable
from timers.stores.rows import build_timer_row
from timers.stores.sql import statements
from timers.stores.sql.postgresql import FUNCTIONS
from timers.stores.sql.store import SqlTimerStore
from timers.stores.sql.tables import timers
from timers.stores.store_spec import StoreSpec

SQL_SERVERS = ["postgres", "postgres18", "mysql", "mariadb", "tidb"]
PARTITIONS = {"PostgreSQL": 32, "MySQL": 32, "MariaDB": 32, "TiDB": 1024}
# A scheme that speaks the protocol of another database.
WRONG_SCHEMES = {
    "mysql": "mariadb+pymysql",
    "mariadb": "mysql+pymysql",
    "tidb": "mysql+pymysql",
}


@pytest.fixture(scope="module", params=list_parameters(SQL_SERVERS))
def server(request: pytest.FixtureRequest) -> Iterator[SqlStoreUnderTest]:
    server = STORES[request.param]()
    assert isinstance(server, SqlStoreUnderTest)
    server.build().migrate()
    yield server
    server.close()


@pytest.fixture
def stores(server: SqlStoreUnderTest) -> Iterator[SqlStoreUnderTest]:
    server.clear()
    yield server
    server.end_test()


@pytest.fixture
def proxy(stores: SqlStoreUnderTest) -> Iterator[TcpProxy]:
    proxy = TcpProxy(stores.url.host or "", stores.url.port or 0)
    yield proxy
    proxy.close()


def build_behind(proxy: TcpProxy, stores: SqlStoreUnderTest) -> SqlTimerStore:
    assert stores.spec is not None
    url = make_url(stores.spec.url).set(host="127.0.0.1", port=proxy.port)
    store = build_store(replace(stores.spec, url=url.render_as_string(hide_password=False)), CELL)
    assert isinstance(store, SqlTimerStore)
    return store


def run(stores: SqlStoreUnderTest, statement: str) -> list[Any]:
    with stores.engine.connect() as connection:
        result = connection.execute(text(statement))
        return list(result) if result.returns_rows else []


# --- schema -------------------------------------------------------------------------------------------------------


def test_the_server_has_the_columns_of_the_file_in_their_order(stores: SqlStoreUnderTest) -> None:
    found = inspect(stores.engine)
    assert [column["name"] for column in found.get_columns("timers")] == [c.name for c in timers.columns]
    nullable = {column["name"] for column in found.get_columns("timers") if column["nullable"]}
    assert not nullable & {"shard_id", "row_type", "timer_execute_at", "timer_uuid", "timer_taken_until"}


def test_the_table_has_the_specified_partitions(stores: SqlStoreUnderTest) -> None:
    if stores.database.name == "PostgreSQL":
        ((count,),) = run(stores, "SELECT count(*) FROM pg_inherits WHERE inhparent = 'timers'::regclass")
    else:
        ((count,),) = run(
            stores,
            "SELECT COUNT(partition_name) FROM information_schema.partitions"
            " WHERE table_schema = DATABASE() AND table_name = 'timers'",
        )
    assert count == PARTITIONS[stores.database.name]


def test_a_missing_column_and_a_missing_table_are_reported(stores: SqlStoreUnderTest) -> None:
    store = stores.build()
    run(stores, "ALTER TABLE timers RENAME COLUMN updated_at TO changed_at")
    try:
        (problem,) = [finding for finding in store.check() if not finding.is_ok]
        assert "no column updated_at" in problem.text
        assert f"timer_store migrate {stores.spec and stores.spec.name}" in problem.remedy
    finally:
        run(stores, "ALTER TABLE timers RENAME COLUMN changed_at TO updated_at")
    run(stores, "ALTER TABLE timers RENAME TO timers_elsewhere")
    try:
        (problem,) = [finding for finding in store.check() if not finding.is_ok]
        assert "there is no table timers" in problem.text
    finally:
        run(stores, "ALTER TABLE timers_elsewhere RENAME TO timers")


def test_a_missing_function_is_reported_and_created_by_two_migrations_at_the_same_time(
    stores: SqlStoreUnderTest,
) -> None:
    if stores.database.name != "PostgreSQL":
        pytest.skip("only the schema for PostgreSQL has functions")
    for function in FUNCTIONS:
        run(stores, f"DROP FUNCTION {function}")
    store, other = stores.build(), stores.build()
    (problem,) = [finding for finding in store.check() if not finding.is_ok]
    for function in FUNCTIONS:
        assert f"there is no function {function}" in problem.text
    with ThreadPoolExecutor() as executor:
        list(executor.map(SqlTimerStore.migrate, [store, other]))
    assert all(finding.is_ok for finding in store.check())


def test_a_server_of_another_kind_is_refused(stores: SqlStoreUnderTest) -> None:
    assert stores.spec is not None
    scheme = WRONG_SCHEMES.get(stores.spec.name)
    if scheme is None:
        pytest.skip("no other database speaks this protocol")
    store = build_store(
        StoreSpec("main", scheme, stores.spec.url.replace(stores.spec.scheme, scheme, 1)), CELL
    )
    with pytest.raises(StoreUnavailable, match=r"MariaDB|TiDB"):
        store.migrate()
    store.close()


# --- plans --------------------------------------------------------------------------------------------------------


def explain(stores: SqlStoreUnderTest, statement: ClauseElement) -> str:
    compiled = statement.compile(stores.engine, compile_kwargs={"literal_binds": True})
    form = "FORMAT=TRADITIONAL " if stores.database.name == "MySQL" else ""
    return "\n".join(
        str(row) for row in run(stores, f"EXPLAIN {form}{str(compiled).replace(':', chr(92) + ':')}")
    )


def test_due_timers_and_look_ups_use_their_indexes(stores: SqlStoreUnderTest) -> None:
    """Each reads one partition, and the due timers need no sorting."""
    rows = [
        build_timer_row(build_timer(f"timer-{n}", NOW + timedelta(minutes=n % 5000))) for n in range(8000)
    ]
    with stores.engine.connect() as connection:
        for start in range(0, len(rows), 500):
            connection.execute(timers.insert(), rows[start : start + 500])
    name = stores.database.name
    if name != "TiDB":  # It takes a minute for 1,024 partitions, and plans the same without it.
        run(stores, "ANALYZE timers" if name == "PostgreSQL" else "ANALYZE TABLE timers")
    timer = build_timer("timer-7")
    shard = timer.key.shard
    due = explain(stores, statements.select_due(shard, NOW, NOW, (NOW, timer.key.uuid), 100, CELL))
    look_up = explain(stores, statements.select_timer(timer.key))
    if name == "PostgreSQL":
        assert "pkey" in due
        assert "namespace_timer_id_idx" in look_up
        for plan in (due, look_up):
            assert "Seq Scan" not in plan
            assert "Append" not in plan
    elif name == "TiDB":
        assert "TableRangeScan" in due
        assert "TopN" not in due
        assert "idx_timer_lookup" in look_up
    else:
        assert "PRIMARY" in due
        assert "filesort" not in due
        assert "idx_timer_lookup" in look_up


# --- outages ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trouble", [Trouble.RESET, Trouble.SWALLOW], ids=lambda trouble: trouble.value)
def test_a_write_without_an_answer_has_an_unknown_outcome_and_can_be_repeated(
    stores: SqlStoreUnderTest, proxy: TcpProxy, trouble: Trouble
) -> None:
    store = build_behind(proxy, stores)
    timer = build_timer()
    store.get(timer.key)

    def make_trouble(*arguments: object) -> None:
        proxy.set_trouble(trouble)

    # After the connection has been checked, and before the statement is sent.
    event.listen(store._engine, "before_cursor_execute", make_trouble)
    with pytest.raises(OutcomeUnknown):
        store.put(timer, None, NOW)
    event.remove(store._engine, "before_cursor_execute", make_trouble)
    proxy.set_trouble(Trouble.NONE)
    store.put(timer, None, NOW)
    assert stores.build().get(timer.key) == timer
    store.close()


def test_a_connection_that_ends_is_replaced_before_the_next_write(
    stores: SqlStoreUnderTest, proxy: TcpProxy
) -> None:
    store = build_behind(proxy, stores)
    first, second = build_timers_of_shard(3, 2)
    store.put(first, None, NOW)
    with proxy.make_trouble(Trouble.RESET, 0), pytest.raises(StoreUnavailable):
        store.put(second, None, NOW)
    store.put(second, None, NOW)
    assert len(store.scan(ALERTS, 16, None, 10).timers) == 2
    store.close()

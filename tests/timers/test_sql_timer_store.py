"""The SQL of timer stores: the tables are the specification's, and every statement can be rendered for every database.

No server for Oracle and SQL Server is available. What a parser understands of their statements is checked here.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.contracts.timer_stores.base import ALERTS, CELL, NOW, build_key, build_timer
from timers.stores.factory import build_store
from timers.stores.port import (
    Claim,
    Member,
    NamespaceDeclaration,
    NextAttempt,
    Progress,
    RowType,
    ShardOwnership,
    StoreUnavailable,
    TimerRefused,
    TimerTooLarge,
)
from timers.stores.store_spec import StoreSpec

pytest.importorskip("sqlalchemy")
sqlglot = pytest.importorskip("sqlglot")

from sqlalchemy import select  # noqa: E402
from sqlalchemy.dialects import mssql, mysql, oracle, postgresql  # noqa: E402
from sqlglot import exp  # noqa: E402

from timers.stores.sql import statements  # noqa: E402
from timers.stores.sql.databases import DATABASES, SqlDatabase  # noqa: E402
from timers.stores.sql.store import SqlTimerStore  # noqa: E402
from timers.stores.sql.tables import ServerTime, timers  # noqa: E402

# The dialect of each database in sqlglot, and in SQLAlchemy.
PARSERS = {
    "PostgreSQL": "postgres",
    "MySQL": "mysql",
    "MariaDB": "mysql",
    "TiDB": "mysql",
    "Oracle": "oracle",
    "SQL Server": "tsql",
}
DIALECTS: dict[str, Callable[[], Any]] = {
    "postgres": postgresql.dialect,
    "mysql": mysql.dialect,
    "oracle": oracle.dialect,
    "tsql": mssql.dialect,
}

# The columns as the specification declares them: on PostgreSQL, on MySQL and TiDB, on Oracle, on SQL Server.
SPECIFIED = {
    "shard_id": ("INTEGER", "INT", "NUMBER(10)", "INT"),
    "row_type": ("SMALLINT", "SMALLINT", "NUMBER(5)", "SMALLINT"),
    "timer_execute_at": ("TIMESTAMP(3)", "TIMESTAMP(3)", "TIMESTAMP(3)", "DATETIME2(3)"),
    "timer_uuid": ("UUID", "CHAR(36)", "RAW(16)", "UNIQUEIDENTIFIER"),
    "timer_id": ("VARCHAR(255)", "VARCHAR(255)", "VARCHAR2(255)", "NVARCHAR(255)"),
    "timer_namespace": ("VARCHAR(255)", "VARCHAR(255)", "VARCHAR2(255)", "NVARCHAR(255)"),
    "timer_callback_url": ("VARCHAR(2048)", "VARCHAR(2048)", "VARCHAR2(2048)", "NVARCHAR(2048)"),
    "timer_payload": ("JSONB", "JSON", "CLOB", "NVARCHAR(MAX)"),
    "timer_retry_policy": ("JSONB", "JSON", "CLOB", "NVARCHAR(MAX)"),
    "timer_callback_timeout_seconds": ("INTEGER", "INT", "NUMBER(10)", "INT"),
    "timer_created_at": ("TIMESTAMP(3)", "TIMESTAMP(3)", "TIMESTAMP(3)", "DATETIME2(3)"),
    "timer_attempts": ("INTEGER", "INT", "NUMBER(10)", "INT"),
    "shard_version": ("BIGINT", "BIGINT", "NUMBER(19)", "BIGINT"),
    "shard_owner_id": ("VARCHAR(255)", "VARCHAR(255)", "VARCHAR2(255)", "NVARCHAR(255)"),
    "shard_claimed_at": ("TIMESTAMP(3)", "TIMESTAMP(3)", "TIMESTAMP(3)", "DATETIME2(3)"),
    "shard_metadata": ("JSONB", "JSON", "CLOB", "NVARCHAR(MAX)"),
}
KEY = "PRIMARY KEY (shard_id, row_type, timer_execute_at, timer_uuid)"
LOOKUP = r"UNIQUE INDEX (IF NOT EXISTS )?idx_timer_lookup (ON timers )?\(shard_id, row_type, timer_namespace, timer_id\)"
PARTITIONS = {
    "PostgreSQL": "PARTITION BY HASH (shard_id)",
    "MySQL": "PARTITION BY HASH (shard_id) PARTITIONS 32",
    "MariaDB": "PARTITION BY HASH (shard_id) PARTITIONS 32",
    "TiDB": "PARTITION BY HASH (shard_id) PARTITIONS 1024",
    "Oracle": "ORGANIZATION INDEX OVERFLOW PARTITION BY HASH (shard_id) PARTITIONS 32",
    "SQL Server": "ON ps_shard_id (shard_id)",
}


@pytest.fixture(params=DATABASES.values(), ids=lambda database: database.name)
def database(request: pytest.FixtureRequest) -> SqlDatabase:
    found: SqlDatabase = request.param
    return found


def get_specified_type(column: str, database: SqlDatabase) -> str:
    """Return the type in the specification, or the one that departs from it (decision 34)."""
    at = ["postgres", "mysql", "oracle", "tsql"].index(PARSERS[database.name])
    if column == "timer_callback_timeout_seconds":  # holds fractions
        return ("DOUBLE PRECISION", "DOUBLE", "BINARY_DOUBLE", "FLOAT")[at]
    kind = SPECIFIED[column][at]
    if PARSERS[database.name] == "mysql":  # whose TIMESTAMP ends in 2038
        kind = kind.replace("TIMESTAMP", "DATETIME")
    if database.name == "Oracle" and column in ("timer_id", "timer_namespace"):
        kind = kind.replace("255", "255 CHAR")
    return kind


def parse_table(database: SqlDatabase) -> tuple[Any, str]:
    """Return the CREATE TABLE without the clause of partitions, which no parser knows for all databases, and this clause."""
    (text,) = [s for s in database.list_schema_statements() if re.match(r"CREATE TABLE .*timers \(", s)]
    columns, _, partitions = text.rpartition("\n)")
    plain = columns.replace(" CLUSTERED", "")
    return sqlglot.parse_one(f"{plain}\n)", dialect=PARSERS[database.name]), partitions


def normalize_type(kind: str, database: SqlDatabase) -> str:
    """Return a type as the parser writes it, for which some have several names."""
    parser = PARSERS[database.name]
    (column,) = sqlglot.parse_one(f"CREATE TABLE t (c {kind})", dialect=parser).find_all(exp.ColumnDef)
    return str(column.kind.sql(parser))


def test_the_table_has_the_specified_columns_first(database: SqlDatabase) -> None:
    table, _ = parse_table(database)
    declared = {
        column.name: column.kind.sql(PARSERS[database.name]) for column in table.find_all(exp.ColumnDef)
    }
    expected = {name: normalize_type(get_specified_type(name, database), database) for name in SPECIFIED}
    assert list(declared)[: len(SPECIFIED)] == list(SPECIFIED)
    assert {name: declared[name] for name in SPECIFIED} == expected
    assert list(declared) == [column.name for column in timers.columns]


def test_the_table_has_the_specified_keys_and_partitions(database: SqlDatabase) -> None:
    table, partitions = parse_table(database)
    (key,) = table.find_all(exp.PrimaryKey)
    assert key.sql() == KEY
    assert PARTITIONS[database.name] in partitions
    assert re.search(LOOKUP, "\n".join(database.list_schema_statements()))


def test_tidb_keeps_rows_in_the_order_of_the_key_and_postgresql_has_32_partitions() -> None:
    schemas = {database.name: database.list_schema_statements() for database in DATABASES.values()}
    assert f"{KEY} CLUSTERED" in schemas["TiDB"][0]
    partitions = [s for s in schemas["PostgreSQL"] if "PARTITION OF timers" in s]
    assert [int(n) for s in partitions for n in re.findall(r"REMAINDER (\d+)", s)] == list(range(32))
    assert all("MODULUS 32" in s for s in partitions)


TIMER = build_timer(payload={"a": 1}, retry_policy={}, taken_by=CELL, takes=1)
NEXT = replace(TIMER, key=build_key("timer-2"))
MEMBER = Member(uuid.UUID(int=1), 2, {"host": "a"})
STATEMENTS = {
    "insert_timer": statements.insert_timer(TIMER),
    "replace_timer": statements.replace_timer(TIMER, TIMER),
    "select_timer": statements.select_timer(TIMER.key),
    "delete_timer": statements.delete_timer(TIMER),
    "select_due": statements.select_due(3, NOW, NOW, (NOW, TIMER.key.uuid), 100, CELL),
    "take_timers": statements.take_timers([TIMER, NEXT], NOW, CELL, MEMBER.id),
    "select_won": statements.select_won([TIMER, NEXT], MEMBER.id),
    "postpone_timer": statements.postpone_timer(TIMER, NOW),
    "reschedule_timers": statements.reschedule_timers(
        [NextAttempt(TIMER.take, NOW, Progress()), NextAttempt(NEXT.take, NOW)], CELL
    ),
    "move_timer": statements.move_timer(TIMER, NEXT),
    "remove_timers": statements.remove_timers([TIMER.take, NEXT.take], CELL),
    "select_namespace_timers": statements.select_namespace_timers(ALERTS, range(3, 9), "timer-1", 50),
    "count_timers": statements.count_timers([1, 2], NOW),
    "select_shards": statements.select_shards([1, 2]),
    "insert_shard": statements.insert_shard(1, "owner", {}),
    "claim_shard": statements.claim_shard(ShardOwnership(1, 3), "owner", {}),
    "release_shards": statements.release_shards([Claim(1, 3), Claim(2, 1)]),
    "select_reserved": statements.select_reserved(RowType.MEMBER),
    "insert_member": statements.insert_member(MEMBER),
    "update_member": statements.update_member(MEMBER),
    "delete_member": statements.delete_member(MEMBER),
    "insert_namespace": statements.insert_namespace(ALERTS, {"numShards": 16}),
    "update_namespace": statements.update_namespace(NamespaceDeclaration(ALERTS, 16, {}, 1), {}),
    "read_clock": select(ServerTime()),
}


def test_every_statement_is_rendered_here() -> None:
    public = {
        name
        for name, value in vars(statements).items()
        if callable(value)
        and getattr(value, "__module__", "") == statements.__name__
        and not name.startswith("_")
    }
    assert public == STATEMENTS.keys() - {"read_clock"}


@pytest.mark.parametrize("name", STATEMENTS)
@pytest.mark.parametrize("parser", DIALECTS)
def test_a_statement_is_valid_on_every_database_and_has_no_value_in_its_text(parser: str, name: str) -> None:
    compiled = STATEMENTS[name].compile(
        dialect=DIALECTS[parser](), compile_kwargs={"render_postcompile": True}
    )
    text = re.sub(r"%\((\w+)\)s|%s", lambda found: f":{found[1] or 'p'}", str(compiled))
    # A Command is what the parser does not understand.
    assert not isinstance(sqlglot.parse_one(text, dialect=parser), exp.Command)
    assert "timer-1" not in text
    assert "2026" not in text
    assert CELL not in text


def build_unreachable_store(scheme: str) -> SqlTimerStore:
    store = build_store(StoreSpec.parse(f"main={scheme}://user:s3cret@127.0.0.1:1/db"), CELL)
    assert isinstance(store, SqlTimerStore)
    return store


def test_a_database_that_ignores_trailing_spaces_refuses_ids_that_end_in_one() -> None:
    """Else two ids that differ would be one timer. Refused before the server is asked."""
    pytest.importorskip("pymssql", reason="the driver of SQL Server is not installed")
    with pytest.raises(TimerRefused, match=r"^id: SQL Server ignores trailing spaces"):
        build_unreachable_store("mssql+pymssql").put(build_timer("timer "), None, NOW)


def test_a_timer_that_is_too_large_is_refused_before_the_server_is_asked() -> None:
    with pytest.raises(TimerTooLarge, match=r"^payload: the timer has .* bytes, and TiDB accepts 5,242,880"):
        build_unreachable_store("tidb+pymysql").put(build_timer(payload="x" * 6_000_000), None, NOW)


@pytest.mark.parametrize("scheme", ["postgresql+psycopg", "mysql+pymysql", "mariadb+pymysql", "tidb+pymysql"])
def test_a_server_that_cannot_be_reached_is_unavailable_and_its_password_is_not_shown(scheme: str) -> None:
    store = build_unreachable_store(scheme)
    for use in (store.members, store.migrate, lambda: store.put(build_timer(), None, NOW)):
        with pytest.raises(StoreUnavailable) as raised:
            use()
        assert str(raised.value).startswith("main: ")
        assert "s3cret" not in str(raised.value)

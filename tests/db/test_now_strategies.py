"""Each database renders `DbNow` by a strategy of its own: the SQL in both storage modes, and what it evaluates to."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import connection, transaction
from django.db.backends.sqlite3.base import DatabaseWrapper as PlainDatabaseWrapper
from django.db.models import F

from eventservice.db.configuration import DATABASES
from eventservice.db.dialects.mariadb.dialect import MariaDBDialect
from eventservice.db.dialects.mysql.dialect import MySQLDialect
from eventservice.db.dialects.now_strategy import DbNowStrategy, TimestampStorage, to_epoch_ms
from eventservice.db.dialects.postgresql.dialect import PostgreSQLDialect
from eventservice.db.dialects.sqlite.dialect import SQLiteDialect
from eventservice.db.now import (
    EPOCH_MS,
    ISO_TEXT,
    DbNow,
    db_now,
    db_now_ms,
    get_now_strategy,
    pin_time,
    render_now,
)
from eventservice.tenants.models import Tenant
from tests.database_clock import read_running_clock, wait_until_the_clock_moves
from tests.factories import TenantFactory

STRATEGIES = {
    dialect.__module__.split(".")[-2]: dialect.now_strategy
    for dialect in (SQLiteDialect, PostgreSQLDialect, MariaDBDialect, MySQLDialect)
}
BEGUN = datetime(2026, 3, 1, 12, 0, 0, 123_456)
BEGUN_MS = 1_772_366_400_123
OPERATIONS = SimpleNamespace(adapt_datetimefield_value=lambda moment: f"{moment:%Y-%m-%d %H:%M:%S.%f}")
INSIDE = SimpleNamespace(in_atomic_block=True, transaction_now=BEGUN, ops=OPERATIONS)
OUTSIDE = SimpleNamespace(in_atomic_block=False, transaction_now=None, ops=OPERATIONS)

NONE, MINUTES, FRACTION = timedelta(), timedelta(minutes=-2), timedelta(seconds=1.5)

MS_TEXT = "strftime('%%Y-%%m-%%d %%H:%%M:%%f000', "
SQLITE_TEXT = "(SELECT ts_text FROM temp.stable_now)"
SQLITE_MS = "(SELECT ts_epoch_ms FROM temp.stable_now)"
SQLITE_CLOCK_MS = "CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER)"

# By database, whether inside a transaction, storage mode and offset.
Rendered = dict[tuple[str, str, TimestampStorage, timedelta], tuple[str, list[Any]]]


def expect_of_sqlite() -> Rendered:
    return {
        ("sqlite", "inside", ISO_TEXT, NONE): (SQLITE_TEXT, []),
        ("sqlite", "inside", ISO_TEXT, MINUTES): (f"{MS_TEXT}{SQLITE_TEXT}, '-120.000 seconds')", []),
        ("sqlite", "inside", ISO_TEXT, FRACTION): (f"{MS_TEXT}{SQLITE_TEXT}, '+1.500 seconds')", []),
        ("sqlite", "inside", EPOCH_MS, NONE): (SQLITE_MS, []),
        ("sqlite", "inside", EPOCH_MS, MINUTES): (f"({SQLITE_MS} + -120000)", []),
        ("sqlite", "inside", EPOCH_MS, FRACTION): (f"({SQLITE_MS} + 1500)", []),
        ("sqlite", "outside", ISO_TEXT, NONE): (f"{MS_TEXT}'now')", []),
        ("sqlite", "outside", ISO_TEXT, MINUTES): (f"{MS_TEXT}'now', '-120.000 seconds')", []),
        ("sqlite", "outside", ISO_TEXT, FRACTION): (f"{MS_TEXT}'now', '+1.500 seconds')", []),
        ("sqlite", "outside", EPOCH_MS, NONE): (SQLITE_CLOCK_MS, []),
        ("sqlite", "outside", EPOCH_MS, MINUTES): (f"({SQLITE_CLOCK_MS} + -120000)", []),
        ("sqlite", "outside", EPOCH_MS, FRACTION): (f"({SQLITE_CLOCK_MS} + 1500)", []),
    }


def expect_of_postgresql(where: str) -> Rendered:
    now, moved = "CURRENT_TIMESTAMP", "(CURRENT_TIMESTAMP + %s * INTERVAL '1 microsecond')"
    ms = "FLOOR(EXTRACT(EPOCH FROM {}) * 1000)::bigint"
    return {
        ("postgresql", where, ISO_TEXT, NONE): (now, []),
        ("postgresql", where, ISO_TEXT, MINUTES): (moved, [-120_000_000]),
        ("postgresql", where, ISO_TEXT, FRACTION): (moved, [1_500_000]),
        ("postgresql", where, EPOCH_MS, NONE): (ms.format(now), []),
        ("postgresql", where, EPOCH_MS, MINUTES): (ms.format(moved), [-120_000_000]),
        ("postgresql", where, EPOCH_MS, FRACTION): (ms.format(moved), [1_500_000]),
    }


def expect_of_mysql(name: str) -> Rendered:
    now, moved = "CURRENT_TIMESTAMP(6)", "(TIMESTAMPADD(MICROSECOND, %s, CURRENT_TIMESTAMP(6)))"
    ms = "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', {}) DIV 1000)"
    return {
        (name, "inside", ISO_TEXT, NONE): ("CAST(%s AS DATETIME(6))", ["2026-03-01 12:00:00.123456"]),
        (name, "inside", ISO_TEXT, MINUTES): ("CAST(%s AS DATETIME(6))", ["2026-03-01 11:58:00.123456"]),
        (name, "inside", ISO_TEXT, FRACTION): ("CAST(%s AS DATETIME(6))", ["2026-03-01 12:00:01.623456"]),
        (name, "inside", EPOCH_MS, NONE): ("CAST(%s AS SIGNED)", [BEGUN_MS]),
        (name, "inside", EPOCH_MS, MINUTES): ("CAST(%s AS SIGNED)", [BEGUN_MS - 120_000]),
        (name, "inside", EPOCH_MS, FRACTION): ("CAST(%s AS SIGNED)", [BEGUN_MS + 1500]),
        (name, "outside", ISO_TEXT, NONE): (now, []),
        (name, "outside", ISO_TEXT, MINUTES): (moved, [-120_000_000]),
        (name, "outside", ISO_TEXT, FRACTION): (moved, [1_500_000]),
        (name, "outside", EPOCH_MS, NONE): (ms.format(now), []),
        (name, "outside", EPOCH_MS, MINUTES): (ms.format(moved), [-120_000_000]),
        (name, "outside", EPOCH_MS, FRACTION): (ms.format(moved), [1_500_000]),
    }


RENDERED = (
    expect_of_sqlite()
    | expect_of_postgresql("inside")
    | expect_of_postgresql("outside")
    | expect_of_mysql("mariadb")
    | expect_of_mysql("mysql")
)


@pytest.mark.parametrize("storage", TimestampStorage)
@pytest.mark.parametrize("offset", [NONE, MINUTES, FRACTION], ids=str)
@pytest.mark.parametrize("where", ["inside", "outside"])
@pytest.mark.parametrize("name", STRATEGIES)
def test_the_sql_of_each_database(
    name: str, where: str, offset: timedelta, storage: TimestampStorage
) -> None:
    sql = STRATEGIES[name].render_now(INSIDE if where == "inside" else OUTSIDE, offset, storage)
    assert sql == RENDERED[name, where, storage, offset]


@pytest.mark.parametrize(
    ("name", "timestamp", "epoch_ms"),
    [
        ("sqlite", "%s", "%s"),
        ("postgresql", "%s::timestamptz", "%s::bigint"),
        ("mariadb", "CAST(%s AS DATETIME(6))", "CAST(%s AS SIGNED)"),
        ("mysql", "CAST(%s AS DATETIME(6))", "CAST(%s AS SIGNED)"),
    ],
)
def test_the_sql_of_a_fixed_time(name: str, timestamp: str, epoch_ms: str) -> None:
    instant = BEGUN.replace(tzinfo=UTC)
    render = STRATEGIES[name].render_instant
    assert render(INSIDE, instant, ISO_TEXT) == (timestamp, ["2026-03-01 12:00:00.123456"])
    assert render(INSIDE, instant, EPOCH_MS) == (epoch_ms, [BEGUN_MS])


def test_only_databases_whose_clock_moves_within_a_transaction_have_a_prelude() -> None:
    assert {name for name, strategy in STRATEGIES.items() if strategy.prelude} == {
        "sqlite", "mariadb", "mysql",
    }  # fmt: skip
    assert {name for name, strategy in STRATEGIES.items() if strategy.setup} == {"sqlite"}


def test_every_supported_database_has_a_strategy_and_any_other_is_an_error() -> None:
    assert {database.engine.rpartition(".")[2] for database in DATABASES} == set(STRATEGIES)
    assert isinstance(get_now_strategy(connection), DbNowStrategy)
    plain = PlainDatabaseWrapper({"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"})
    with pytest.raises(ImproperlyConfigured, match=r"django\.db\.backends\.sqlite3.*is not supported"):
        get_now_strategy(plain)


OFFSETS = [
    NONE,
    MINUTES,
    FRACTION,
    timedelta(milliseconds=-250),
    timedelta(days=400),
    timedelta(milliseconds=1),
]


def evaluate(offset: timedelta, storage: TimestampStorage) -> Any:
    sql, values = render_now(offset, storage)
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {sql}", values)
        return cursor.fetchone()[0]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("offset", OFFSETS, ids=str)
def test_milliseconds_in_a_transaction_are_those_of_its_time(offset: timedelta) -> None:
    with transaction.atomic():
        begun = db_now()
        wait_until_the_clock_moves()
        assert db_now_ms() == to_epoch_ms(begun)
        assert evaluate(offset, EPOCH_MS) == to_epoch_ms(begun + offset)
        TenantFactory(stored_bytes=DbNow(offset, EPOCH_MS), created_at=DbNow(offset))
    stored = Tenant.objects.get()
    assert stored.stored_bytes == to_epoch_ms(stored.created_at) == to_epoch_ms(begun + offset)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("offset", OFFSETS, ids=str)
def test_milliseconds_outside_a_transaction_are_those_of_the_statement(offset: timedelta) -> None:
    before = to_epoch_ms(read_running_clock() + offset)
    assert before <= evaluate(offset, EPOCH_MS) <= to_epoch_ms(read_running_clock() + offset)
    assert before <= to_epoch_ms(db_now() + offset) <= to_epoch_ms(read_running_clock() + offset)


@pytest.mark.django_db
@pytest.mark.parametrize(
    "write",
    [
        lambda: Tenant.objects.update(stored_bytes=DbNow(FRACTION, EPOCH_MS)),
        lambda: Tenant.objects.filter(stored_bytes__lt=DbNow(MINUTES, EPOCH_MS)).update(
            stored_bytes=DbNow(storage=EPOCH_MS) + 1500
        ),
        lambda: Tenant.objects.filter(stored_bytes__lt=DbNow(storage=EPOCH_MS) - F("max_in_flight")).update(
            stored_bytes=DbNow(FRACTION, EPOCH_MS)
        ),
    ],
    ids=["update", "update where", "arithmetic"],
)
def test_statements_can_write_and_compare_milliseconds(write: Callable[[], int]) -> None:
    TenantFactory(stored_bytes=0)
    assert write() == 1
    wait_until_the_clock_moves()
    assert Tenant.objects.get().stored_bytes == db_now_ms() + 1500
    assert Tenant.objects.filter(stored_bytes=DbNow(FRACTION, EPOCH_MS)).exists()


@pytest.mark.django_db
def test_a_pinned_time_has_its_milliseconds() -> None:
    with pin_time(BEGUN.replace(tzinfo=UTC)):
        assert db_now_ms() == BEGUN_MS
        assert evaluate(FRACTION, EPOCH_MS) == BEGUN_MS + 1500


@pytest.mark.django_db(transaction=True)
def test_a_read_within_a_transaction_that_writes_sees_the_transactions_time() -> None:
    with transaction.atomic():
        TenantFactory(created_at=DbNow())
        wait_until_the_clock_moves()
        # By the running clock, the row would be from the past.
        assert list(Tenant.objects.filter(created_at__lt=DbNow())) == []
        assert Tenant.objects.filter(created_at=DbNow()).count() == 1
    wait_until_the_clock_moves()
    assert Tenant.objects.filter(created_at__lt=DbNow()).count() == 1

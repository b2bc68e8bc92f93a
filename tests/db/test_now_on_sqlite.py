"""SQLite's time is per statement; statements of a transaction read the backend's temp table instead (spec §8)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from eventservice.db.dialects.now_strategy import to_epoch_ms
from eventservice.db.dialects.sqlite.dialect import NOW_TABLE
from eventservice.db.now import EPOCH_MS, DbNow
from eventservice.tenants.models import Tenant
from tests.database_clock import wait_until_the_clock_moves
from tests.factories import TenantFactory

pytestmark = [pytest.mark.sqlite_only, pytest.mark.django_db(transaction=True)]

MUTATIONS: dict[str, Callable[[], Any]] = {
    "insert": lambda: TenantFactory(created_at=DbNow()),
    "insert with an offset": lambda: TenantFactory(created_at=DbNow(timedelta(minutes=-1))),
    "update": lambda: Tenant.objects.update(created_at=DbNow(timedelta(seconds=0.5))),
    "update of a column of milliseconds": lambda: Tenant.objects.update(stored_bytes=DbNow(storage=EPOCH_MS)),
    "update where milliseconds": lambda: Tenant.objects.filter(
        stored_bytes__lt=DbNow(timedelta(seconds=1.5), EPOCH_MS)
    ).update(active=False),
    "update where": lambda: Tenant.objects.filter(created_at__lt=DbNow()).update(active=False),
    "delete where": lambda: Tenant.objects.filter(created_at__lt=DbNow())._raw_delete("default"),
}


def capture_sql(mutation: Callable[[], Any]) -> str:
    with CaptureQueriesContext(connection) as queries:
        mutation()
    statements = [str(query["sql"]) for query in queries if "tenants" in query["sql"]]
    assert len(statements) == 1
    return statements[0]


@pytest.mark.parametrize("mutation", MUTATIONS.values(), ids=MUTATIONS)
def test_a_mutation_in_a_transaction_reads_the_temp_table_and_no_clock(mutation: Callable[[], Any]) -> None:
    with transaction.atomic():
        sql = capture_sql(mutation)
    assert NOW_TABLE in sql
    assert "'now'" not in sql


@pytest.mark.parametrize("mutation", MUTATIONS.values(), ids=MUTATIONS)
def test_a_mutation_outside_a_transaction_reads_the_clock(mutation: Callable[[], Any]) -> None:
    sql = capture_sql(mutation)
    assert NOW_TABLE not in sql
    assert "'now'" in sql


def test_each_connection_has_its_own_temp_table(elsewhere: Any) -> None:
    def count_seeded_rows() -> Any:
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT count(*) FROM {NOW_TABLE}")
            return cursor.fetchone()[0]

    with transaction.atomic():
        assert count_seeded_rows() == 1
        assert elsewhere(count_seeded_rows).result() == 0


def test_the_temp_table_has_both_columns_of_the_spec_and_one_row_that_each_transaction_replaces() -> None:
    def read_row() -> tuple[Any, ...]:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(f"SELECT ts_epoch_ms, ts_text FROM {NOW_TABLE}")
            (row,) = cursor.fetchall()
            return tuple(row)

    first = read_row()
    wait_until_the_clock_moves()
    second = read_row()
    assert first < second
    for epoch_ms, text in (first, second):
        assert epoch_ms == to_epoch_ms(datetime.fromisoformat(text).replace(tzinfo=UTC))


def test_stored_times_have_one_width_so_that_they_sort_as_strings() -> None:
    with transaction.atomic():
        for offset in (timedelta(), timedelta(days=1), timedelta(seconds=-0.5), timedelta(milliseconds=1)):
            TenantFactory(created_at=DbNow(offset))
        TenantFactory()
        with connection.cursor() as cursor:
            cursor.execute("SELECT DISTINCT length(created_at) FROM tenants")
            assert cursor.fetchall() == [(len("2026-01-01 00:00:00.000000"),)]

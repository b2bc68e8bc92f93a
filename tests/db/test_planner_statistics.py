"""PostgreSQL gets its first statistics as soon as a table has rows, and not a minute later."""

from __future__ import annotations

import pytest
from django.db import connection

from eventservice.db.dialects import get_dialect

pytestmark = pytest.mark.django_db


@pytest.mark.skipif(connection.vendor != "postgresql", reason="about PostgreSQL's own statistics")
def test_a_table_that_has_rows_and_no_statistics_gets_some_once() -> None:
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE filled AS SELECT generate_series(1, 20000) AS n")
        cursor.execute("CREATE TABLE blank (n integer)")
        assert get_dialect().gather_first_statistics(["filled", "blank"]) == ["filled"]
        cursor.execute("SELECT reltuples FROM pg_class WHERE relname = 'filled'")
        assert cursor.fetchone()[0] == 20000
        assert get_dialect().gather_first_statistics(["filled", "blank"]) == []


@pytest.mark.skipif(
    connection.vendor == "postgresql", reason="about the databases that gather statistics themselves"
)
def test_other_databases_need_none() -> None:
    assert get_dialect().list_tables_without_statistics() == []
    assert get_dialect().gather_first_statistics(["tenants"]) == []

"""PostgreSQL gets its first statistics when a table has rows, and not a minute later."""

from __future__ import annotations

import pytest
from django.db import connection

from eventservice.db.planner_statistics import gather_first_statistics

pytestmark = pytest.mark.django_db


def test_a_table_that_has_rows_and_no_statistics_gets_some_once() -> None:
    if connection.vendor != "postgresql":
        pytest.skip("about PostgreSQL's own statistics")
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE filled AS SELECT generate_series(1, 20000) AS n")
        cursor.execute("CREATE TABLE blank (n integer)")
        assert gather_first_statistics(["filled", "blank"]) == ["filled"]
        cursor.execute("SELECT reltuples FROM pg_class WHERE relname = 'filled'")
        assert cursor.fetchone()[0] == 20000
        assert gather_first_statistics(["filled", "blank"]) == []

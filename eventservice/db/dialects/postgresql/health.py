"""Checks of PostgreSQL for `manage.py doctor`: the session's timeouts and the planner's statistics."""

from __future__ import annotations

from collections.abc import Iterator

from django.db import connection

from eventservice.db.dialects.health import check_timeouts
from eventservice.db.dialects.postgresql.statistics import list_tables_without_statistics
from eventservice.kernel.findings import Finding, check

TIMEOUTS = ("idle_in_transaction_session_timeout", "lock_timeout", "statement_timeout")
# A table of fewer rows is read quickly, whatever the plan.
MANY_ROWS = 5000


def check_session_timeouts() -> Iterator[Finding]:
    yield check_timeouts({name: f"SHOW {name}" for name in TIMEOUTS})


def check_planner_statistics() -> Iterator[Finding]:
    names = [name for name in list_tables_without_statistics() if _has_many_rows(name)]
    text = f"missing for {', '.join(names)}" if names else "collected for every table with rows"
    remedy = "Run `manage.py dbshell -- -c ANALYZE`: without statistics, lists can take seconds."
    yield check("planner_statistics", not names, text, remedy)


def _has_many_rows(table: str) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT 1 FROM {connection.ops.quote_name(table)} LIMIT 1 OFFSET %s", [MANY_ROWS])
        return cursor.fetchone() is not None

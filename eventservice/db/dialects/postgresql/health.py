"""Checks of PostgreSQL for `manage.py doctor`: the session's timeouts and the planner's statistics."""

from __future__ import annotations

from collections.abc import Iterator

from django.db import connection

from eventservice.db.dialects.health import check_timeouts, describe_session
from eventservice.db.dialects.postgresql.statistics import list_tables_without_statistics
from eventservice.kernel.findings import Finding, check

TIMEOUTS = ("idle_in_transaction_session_timeout", "lock_timeout", "statement_timeout")
# A table of fewer rows is read quickly, whatever the plan.
MANY_ROWS = 5000
# The session that holds locks of writers and waits for nobody: first one that others wait for, then the one with the oldest
# transaction. A role without pg_read_all_stats sees neither times nor statements of other roles.
LOCK_HOLDER_SQL = """
SELECT holder.pid, holder.usename, COALESCE(host(holder.client_addr), 'a local socket'), holder.application_name,
       EXTRACT(EPOCH FROM clock_timestamp() - holder.xact_start), holder.query
FROM pg_stat_activity AS holder
WHERE holder.datname = current_database() AND holder.pid <> pg_backend_pid()
  AND holder.wait_event_type IS DISTINCT FROM 'Lock'
  AND EXISTS (
    SELECT 1 FROM pg_locks
    WHERE pg_locks.pid = holder.pid AND granted AND locktype = 'relation' AND mode <> 'AccessShareLock'
  )
ORDER BY holder.pid IN (
    SELECT unnest(pg_blocking_pids(waiting.pid)) FROM pg_stat_activity AS waiting WHERE waiting.wait_event_type = 'Lock'
  ) DESC, holder.xact_start NULLS LAST
LIMIT 1"""


def check_session_timeouts() -> Iterator[Finding]:
    yield check_timeouts({name: f"SHOW {name}" for name in TIMEOUTS})


def check_planner_statistics() -> Iterator[Finding]:
    names = [name for name in list_tables_without_statistics() if _has_many_rows(name)]
    text = f"missing for {', '.join(names)}" if names else "collected for every table with rows"
    remedy = "Run `manage.py dbshell -- -c ANALYZE`: without statistics, lists can take seconds."
    yield check("planner_statistics", not names, text, remedy)


def describe_lock_holder() -> str:
    return describe_session(LOCK_HOLDER_SQL, "SELECT pg_terminate_backend({});")


def _has_many_rows(table: str) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT 1 FROM {connection.ops.quote_name(table)} LIMIT 1 OFFSET %s", [MANY_ROWS])
        return cursor.fetchone() is not None

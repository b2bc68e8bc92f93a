"""Parts that the health checks of several databases share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import connection

from eventservice.kernel.findings import Finding, check

MAX_STATEMENT_LENGTH = 80


def check_timeouts(queries: Mapping[str, str]) -> Finding:
    """Check that none of the session's timeouts, each with the query for it, is switched off."""
    found = {name: str(fetch_value(query)) for name, query in queries.items()}
    unlimited = [name for name, value in found.items() if value.rstrip("0.") == ""]
    text = ", ".join(f"{name}={value}" for name, value in found.items())
    remedy = "Restart the process, which sets them when it connects. A connection pooler must not reset them."
    return check("session_timeouts", not unlimited, text, remedy)


def fetch_value(sql: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(sql, None)
        return cursor.fetchone()[0]


def describe_session(sql: str, end_command: str) -> str:
    """Return sentences on the session that a query finds, and the command that ends it, or nothing if it finds none.

    The query returns its id, user, host, program, the age of its transaction in seconds, and its statement. The last two can
    be null.
    """
    with connection.cursor() as cursor:
        cursor.execute(sql, None)
        row = cursor.fetchone()
    if row is None:
        return ""
    session_id, user, host, program, seconds, statement = row
    text = (
        f"Session {session_id} of {user} from {host}" + (f" ({program})" if program else "") + " holds locks"
    )
    if seconds is not None:
        text += f" since {seconds:,.0f} s ago"
    statement = " ".join((statement or "").split())
    if len(statement) > MAX_STATEMENT_LENGTH:
        statement = f"{statement[:MAX_STATEMENT_LENGTH]}…"
    if statement:
        text += f", and has executed: {statement}"
    return f"{text.rstrip('; ')}. To end it, execute {end_command.format(session_id)} in `manage.py dbshell`."

"""Parts that the health checks of several databases share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import connection

from eventservice.kernel.findings import Finding, check


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

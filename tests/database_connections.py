"""How a server loses its clients, as it does when it is started anew."""

from __future__ import annotations

from django.db import connection

OTHERS_AND_THEIR_END = {
    "postgresql": (
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()",
        "SELECT pg_terminate_backend(%s)",
    ),
    "mysql": (
        "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()",
        "KILL %s",
    ),
}


def end_other_connections() -> None:
    """Those to this test's database, but for the caller's own."""
    others, end = OTHERS_AND_THEIR_END[connection.vendor]
    with connection.cursor() as cursor:
        cursor.execute(others)
        for (key,) in cursor.fetchall():
            cursor.execute(end, [key])

"""How clients lose their connections to a database server, as they do when it is restarted."""

from __future__ import annotations

from django.db import connection

LIST_OTHERS_AND_END_ONE = {
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
    """End all connections to this test's database except the caller's."""
    list_others, end_one = LIST_OTHERS_AND_END_ONE[connection.vendor]
    with connection.cursor() as cursor:
        cursor.execute(list_others)
        for (key,) in cursor.fetchall():
            cursor.execute(end_one, [key])

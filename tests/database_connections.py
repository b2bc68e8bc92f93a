"""How clients lose their connections to a database server, as they do when it is restarted."""

from __future__ import annotations

from django.db import connection

from tests.databases import get_database_name

END_IN_MYSQL = (
    "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()",
    "KILL %s",
)
LIST_OTHERS_AND_END_ONE = {
    "postgresql": (
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()",
        "SELECT pg_terminate_backend(%s)",
    ),
    "mariadb": END_IN_MYSQL,
    "mysql": END_IN_MYSQL,
}


def end_other_connections() -> None:
    """End all connections to this test's database except the caller's."""
    list_others, end_one = LIST_OTHERS_AND_END_ONE[get_database_name()]
    with connection.cursor() as cursor:
        cursor.execute(list_others)
        for (key,) in cursor.fetchall():
            cursor.execute(end_one, [key])

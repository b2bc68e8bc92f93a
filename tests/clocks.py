"""The database's clock as it runs, whatever the transaction's time: what tests wait by instead of sleeping."""

from __future__ import annotations

from datetime import datetime

from django.db import connection

from eventservice.kernel.now import as_utc

RUNNING = {
    "sqlite": "SELECT strftime('%Y-%m-%d %H:%M:%f', 'now')",
    "postgresql": "SELECT clock_timestamp()",
    "mysql": "SELECT SYSDATE(6)",
}


def running_clock() -> datetime:
    with connection.cursor() as cursor:
        # Without parameters, so that the % of SQLite's format are its own.
        cursor.execute(RUNNING[connection.vendor], None)
        return as_utc(cursor.fetchone()[0])


def until_the_clock_has_moved() -> None:
    begun = running_clock()
    while running_clock() <= begun:
        pass

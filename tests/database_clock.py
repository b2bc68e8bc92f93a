"""Time in tests: the database's clock as it runs, setting it, and how far a promise in seconds can be held to.

The clock runs whatever the transaction's time: it is what tests wait by instead of sleeping.
"""

from __future__ import annotations

import os
from datetime import datetime

from django.apps import apps
from django.db import connection, models, transaction

from eventservice.db.now import as_utc
from tests.databases import get_database_name

RUNNING = {
    "sqlite": "SELECT strftime('%Y-%m-%d %H:%M:%f', 'now')",
    "postgresql": "SELECT clock_timestamp()",
    "mariadb": "SELECT SYSDATE(6)",
    "mysql": "SELECT SYSDATE(6)",
}


# While other tests run on the same cores, only durations that are far off are wrong. `make chaos` runs one test at a
# time, and allows nothing.
BESIDE_OTHERS = 3.0 if "PYTEST_XDIST_WORKER" in os.environ else 1.0


def allow_for_load(seconds: float) -> float:
    return seconds * BESIDE_OTHERS


def read_running_clock() -> datetime:
    with connection.cursor() as cursor:
        # Without parameters, so that % in SQLite's format is not a placeholder.
        cursor.execute(RUNNING[get_database_name()], None)
        return as_utc(cursor.fetchone()[0])


def wait_until_the_clock_moves() -> None:
    begun = read_running_clock()
    while read_running_clock() <= begun:
        pass


# What adds a number of seconds to a column.
SHIFT = {
    "sqlite": "strftime('%Y-%m-%d %H:%M:%f000', {column}, '{seconds:+d} seconds')",
    "postgresql": "{column} + INTERVAL '{seconds} seconds'",
    "mysql": "TIMESTAMPADD(SECOND, {seconds}, {column})",
}


def set_clock_back(seconds: int) -> None:
    """Move every stored moment forward: to all who read them, the clock has been set back. Negative sets it forward.

    Rollups are left out: they are named by their minutes.
    """
    quote = connection.ops.quote_name
    with transaction.atomic(), connection.cursor() as cursor:
        for model in apps.get_models():
            fields = [
                quote(str(field.column))
                for field in model._meta.local_fields
                if isinstance(field, models.DateTimeField)
            ]
            if fields and quote("starts_at") not in fields:
                shift = SHIFT[connection.vendor]
                moves = [f"{name} = {shift.format(column=name, seconds=seconds)}" for name in fields]
                cursor.execute(f"UPDATE {model._meta.db_table} SET {', '.join(moves)}", None)

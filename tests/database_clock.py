"""Time in tests: the database's clock as it runs, and how far a promise in seconds can be held to.

The clock runs whatever the transaction's time: it is what tests wait by instead of sleeping.
"""

from __future__ import annotations

import os
from datetime import datetime

from django.db import connection

from eventservice.db.now import as_utc

RUNNING = {
    "sqlite": "SELECT strftime('%Y-%m-%d %H:%M:%f', 'now')",
    "postgresql": "SELECT clock_timestamp()",
    "mysql": "SELECT SYSDATE(6)",
}


# Beside other tests, on the same cores, a duration shows little: there only what is far off is wrong.
# `make chaos` runs its tests one at a time, and takes the promises at their word.
BESIDE_OTHERS = 3.0 if "PYTEST_XDIST_WORKER" in os.environ else 1.0


def promised(seconds: float) -> float:
    return seconds * BESIDE_OTHERS


def running_clock() -> datetime:
    with connection.cursor() as cursor:
        # Without parameters, so that the % of SQLite's format are its own.
        cursor.execute(RUNNING[connection.vendor], None)
        return as_utc(cursor.fetchone()[0])


def until_the_clock_has_moved() -> None:
    begun = running_clock()
    while running_clock() <= begun:
        pass

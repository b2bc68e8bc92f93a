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


# While other tests run on the same cores, only durations that are far off are wrong. `make chaos` runs one test at a
# time, and allows nothing.
BESIDE_OTHERS = 3.0 if "PYTEST_XDIST_WORKER" in os.environ else 1.0


def allow_for_load(seconds: float) -> float:
    return seconds * BESIDE_OTHERS


def read_running_clock() -> datetime:
    with connection.cursor() as cursor:
        # Without parameters, so that % in SQLite's format is not a placeholder.
        cursor.execute(RUNNING[connection.vendor], None)
        return as_utc(cursor.fetchone()[0])


def wait_until_the_clock_moves() -> None:
    begun = read_running_clock()
    while read_running_clock() <= begun:
        pass

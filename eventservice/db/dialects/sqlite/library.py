"""The choice of the SQLite library: the one that pysqlite3 bundles, where Python's own has the WAL-reset bug.

It has to be made before Django's SQLite backend is imported, because that binds the module's names.
"""

import sqlite3
import sys

# The first version without the bug. Older ones may lose committed pages when a checkpoint resets the WAL.
FIXED = (3, 51, 3)
# How long a writer waits for the write lock.
BUSY_SECONDS = 5


def prefer_fixed_library() -> None:
    if sqlite3.sqlite_version_info >= FIXED:
        return
    try:
        import pysqlite3
    except ImportError:  # no wheel for this platform: the check eventservice.W001 warns
        return
    sys.modules["sqlite3"] = pysqlite3
    sys.modules["sqlite3.dbapi2"] = pysqlite3.dbapi2

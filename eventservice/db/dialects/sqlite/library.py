"""Which SQLite the process uses: the fixed one that pysqlite3 bundles, where Python's own has the WAL-reset bug.

Must be called before Django's SQLite backend is imported, for that binds the module's names.
"""

import sqlite3
import sys

# From here on the bug is fixed (older versions may lose committed pages when a checkpoint resets the WAL).
FIXED = (3, 51, 3)


def prefer_fixed_library() -> None:
    if sqlite3.sqlite_version_info >= FIXED:
        return
    try:
        import pysqlite3
    except ImportError:  # no wheel for this platform: eventservice.W001 tells the operator
        return
    sys.modules["sqlite3"] = pysqlite3
    sys.modules["sqlite3.dbapi2"] = pysqlite3.dbapi2

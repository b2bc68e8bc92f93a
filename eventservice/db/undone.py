"""What is known of a transaction that the database has broken off: was nothing of it written, or can nobody say?"""

from __future__ import annotations

from django.db import OperationalError

# Too many connections, no connection, lock wait timeout, deadlock, statement timeout.
MARIADB = frozenset({1040, 2002, 2003, 1205, 1213, 1969})
# Too many connections, lock timeout, serialization failure, deadlock, statement timeout.
POSTGRESQL = frozenset({"53300", "55P03", "40001", "40P01", "57014"})
# Of a connection that was never made psycopg knows no code.
NO_CONNECTION = ("connection failed", "connection timeout expired")
# Busy, locked, read-only, full, cannot open; the rest of the code says how.
SQLITE = frozenset({5, 6, 8, 13, 14})


def is_undone(error: OperationalError) -> bool:
    """False when it is not known, as of a connection that is lost while the database commits."""
    said, cause = error.args[0] if error.args else "", error.__cause__
    return (
        said in MARIADB
        or str(said).startswith(NO_CONNECTION)
        or getattr(cause, "sqlstate", None) in POSTGRESQL
        or getattr(cause, "sqlite_errorcode", 0) & 0xFF in SQLITE
    )

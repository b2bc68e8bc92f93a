"""Errors that a test raises in place of the database."""

from __future__ import annotations

from django.db import OperationalError


class _DriverError(Exception):
    # As SQLite and PostgreSQL say it; MariaDB's number is the first argument of Django's error.
    sqlite_errorcode = 5
    sqlstate = "55P03"


def lock_timeout() -> OperationalError:
    """Return what each database raises for a lock that another keeps: nothing has been written."""
    error = OperationalError(1205, "Lock wait timeout exceeded; try restarting transaction")
    error.__cause__ = _DriverError()
    return error

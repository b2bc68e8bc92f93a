"""The meaning of a database error: a deadlock to retry, an unknown outcome, or an unavailable database."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import NamedTuple, ParamSpec, TypeVar

from django.db import DatabaseError, InterfaceError, OperationalError, connection

from eventservice.db.dialects import get_dialect
from eventservice.db.dialects.base import Cause
from eventservice.kernel.logging import get_logger

P = ParamSpec("P")
R = TypeVar("R")

MAX_ATTEMPTS = 5
PAUSE_SECONDS = 1.0

log = get_logger(__name__)


class Trouble(NamedTuple):
    """A sentence that says what is wrong with the database, and what operators can do about it."""

    text: str
    remedy: str


UNKNOWN_TROUBLE = Trouble("The database did not answer in time.", "Look for the cause in the log.")
TROUBLES = {
    Cause.DISK_FULL: Trouble("The disk of the database is full.", "Free space on it, or make it larger."),
    Cause.DISK_ERROR: Trouble(
        "The database cannot read or write its files.",
        "Check the disk, its free space and limits on file sizes.",
    ),
    Cause.READ_ONLY: Trouble(
        "The database is read-only.",
        "Let this user write to it: check the file and its folder, or whether the server is a replica.",
    ),
    Cause.CANNOT_OPEN: Trouble(
        "The database file cannot be opened.",
        "Check DB_PATH: the folder must exist, and this user must be able to write to it and to the file.",
    ),
    Cause.NO_FILE: Trouble(
        "The database does not exist.",
        "If DB_PATH (or DATABASE_URL) names the right file, run `manage.py migrate`, which creates it.",
    ),
    Cause.CORRUPT: Trouble(
        "The database is damaged, or the file is not a database.",
        "Stop all processes, keep a copy of the files, and restore a backup. On SQLite, first delete the old files whose"
        " names end in -wal and -shm: SQLite would write what they contain into the backup.",
    ),
    Cause.LOCKED: Trouble(
        "Another process has locked the database for too long.",
        "Find the process that holds a transaction open, such as a backup or a shell.",
    ),
    Cause.TOO_SLOW: Trouble(
        "The database took too long for a statement.", "Check its load, its disk and its statistics."
    ),
    Cause.TOO_MANY_CONNECTIONS: Trouble(
        "The database accepts no more connections.", "Allow it more connections, or start fewer processes."
    ),
    Cause.UNAVAILABLE: Trouble(
        "The database is unavailable, or did not answer in time.",
        "Check that the server is running and that this host and user may connect (DATABASE_URL).",
    ),
    Cause.RETIRED: Trouble(
        "The database was replaced by a backup, or moved to another database.",
        "Restart this process. If that does not help, correct DATABASE_URL or DB_PATH. If a move was interrupted, run "
        "`manage.py move_database` again, or give it up with its option --cancel.",
    ),
    Cause.MIGRATION_MISSING: Trouble(
        "The database lacks tables or columns, which `manage.py migrate` creates.",
        "Run `manage.py migrate`, with the code that the other processes run.",
    ),
}


def find_trouble(error: Exception) -> Trouble | None:
    """Return what is wrong with the database, or None if the error is likely one of the statement."""
    cause = get_dialect().errors.find_cause(error)
    return None if cause is None else TROUBLES[cause]


def is_migration_missing(error: Exception) -> bool:
    """Return whether a table or column is missing, which migrations create."""
    return get_dialect().errors.find_cause(error) is Cause.MIGRATION_MISSING


def explain_error(error: Exception) -> Trouble:
    return find_trouble(error) or UNKNOWN_TROUBLE


def is_deadlock(error: OperationalError) -> bool:
    """Return whether the database rolled the transaction back to resolve a deadlock."""
    return get_dialect().errors.is_deadlock(error)


def retry_on_deadlock(command: Callable[P, R]) -> Callable[P, R]:
    """Run a function again when the database chose its transaction as a deadlock's victim.

    The function must be one transaction. Inside a caller's transaction the error passes through, because then the
    whole transaction has to be repeated. Locks are taken in one order (orchestration.lifecycle), but MariaDB also
    locks the index entries that it passes.
    """

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        for _ in range(MAX_ATTEMPTS - 1):
            try:
                return command(*args, **kwargs)
            except OperationalError as error:
                if connection.in_atomic_block or not is_deadlock(error):
                    raise
        return command(*args, **kwargs)

    return run


def is_outcome_unknown(error: DatabaseError) -> bool:
    """Return whether the transaction may have been committed, for example when its connection was lost.

    False means that the database is known to have written nothing.
    """
    return not get_dialect().errors.is_rolled_back(error)


@contextmanager
def tolerate_outage(max_pause: float = PAUSE_SECONDS) -> Iterator[None]:
    """Log a database error instead of raising it, and pause: background work goes on when the database is back."""
    try:
        yield
    except (DatabaseError, InterfaceError) as error:
        if trouble := find_trouble(error):
            log.error("step_failed", trouble=trouble.text, error=str(error).strip())
        else:
            log.exception("step_failed")
        connection.close_if_unusable_or_obsolete()
        time.sleep(min(max_pause, PAUSE_SECONDS))

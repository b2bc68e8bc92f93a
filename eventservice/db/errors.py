"""The meaning of a database error: a deadlock to retry, an unknown outcome, or an unavailable database."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

from django.db import DatabaseError, InterfaceError, OperationalError, connection

from eventservice.db.dialects import get_dialect
from eventservice.kernel.logging import get_logger

P = ParamSpec("P")
R = TypeVar("R")

MAX_ATTEMPTS = 5
PAUSE_SECONDS = 1.0

log = get_logger(__name__)


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


def is_outcome_unknown(error: OperationalError) -> bool:
    """Return whether the transaction may have been committed, for example when its connection was lost.

    False means that the database is known to have written nothing.
    """
    return not get_dialect().errors.is_rolled_back(error)


@contextmanager
def tolerate_outage(max_pause: float = PAUSE_SECONDS) -> Iterator[None]:
    """Log a database error instead of raising it, and pause: background work goes on when the database is back."""
    try:
        yield
    except (DatabaseError, InterfaceError):
        log.exception("step_failed")
        connection.close_if_unusable_or_obsolete()
        time.sleep(min(max_pause, PAUSE_SECONDS))

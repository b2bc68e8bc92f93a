"""Commands that MariaDB or PostgreSQL chose as a deadlock's victim: nothing of them was written, so they go again.

Locks are taken in one order (orchestration.lifecycle), but MariaDB also locks what it passes in an index.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from django.db import OperationalError, connection

P = ParamSpec("P")
R = TypeVar("R")

MARIADB_DEADLOCK = 1213
POSTGRESQL_DEADLOCK = "40P01"
TRIES = 5


def again_after_deadlock(command: Callable[P, R]) -> Callable[P, R]:
    """For functions that are one transaction. Inside a caller's own, that whole one has to go again, not this part."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        for _ in range(TRIES - 1):
            try:
                return command(*args, **kwargs)
            except OperationalError as error:
                if connection.in_atomic_block or not is_deadlock(error):
                    raise
        return command(*args, **kwargs)

    return run


def is_deadlock(error: OperationalError) -> bool:
    if error.args and error.args[0] == MARIADB_DEADLOCK:
        return True
    return getattr(error.__cause__, "sqlstate", None) == POSTGRESQL_DEADLOCK

"""Run functions at the same moment, each in a thread and on a connection of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from django.db import OperationalError, connection

from tests.process_harness import report

ROUNDS = 8
DEADLOCK = 1213


def race(*functions: Callable[[], Any]) -> list[Any]:
    """Return what each function returned, or the exception that it raised.

    MariaDB rolls back one of two transactions that lock a timer through different indexes. Then that one is
    repeated, as the engine does and as clients must.
    """
    start = threading.Barrier(len(functions))

    def run(function: Callable[[], Any]) -> Any:
        try:
            connection.ensure_connection()
            start.wait(timeout=10)
            return _retry_deadlocks(function)
        finally:
            connection.close()

    with ThreadPoolExecutor(len(functions)) as pool:
        return [_get_result(future) for future in [pool.submit(run, function) for function in functions]]


def _retry_deadlocks(function: Callable[[], Any]) -> Any:
    while True:
        try:
            return function()
        except OperationalError as error:
            if connection.vendor != "mysql" or error.args[0] != DEADLOCK:
                raise
            report("repeated after a deadlock")


def _get_result(future: Future[Any]) -> Any:
    return future.exception(timeout=60) or future.result()

"""Connections to PostgreSQL that do not wait for ever.

libpq limits how long it takes to connect, and how long sent bytes remain unacknowledged. It does not limit how long an
answer takes: the kernel of a suspended server, or a proxy in between, goes on acknowledging. So the connection itself
gives up on a server that is silent for too long.
"""

from __future__ import annotations

import time
from typing import Any, TypeVar

import psycopg
from psycopg.abc import PQGen

T = TypeVar("T")

# How often psycopg looks up from waiting, by default.
LOOK_SECONDS = 0.1


class ServerSilent(psycopg.OperationalError):
    """Raised when the server has sent nothing for too long. The connection is closed: its answer could still come."""


class SilenceLimitedConnection(psycopg.Connection[Any]):
    """A connection that closes itself when the server is silent for `answer_seconds` while an answer is awaited."""

    # Until it is set, the connection waits for ever. `connect_timeout` bounds what happens before.
    answer_seconds = float("inf")

    def wait(self, gen: PQGen[T], interval: float = LOOK_SECONDS, timeout: float | None = None) -> T:
        try:
            return super().wait(limit_silence(gen, self.answer_seconds), interval, timeout)
        except ServerSilent:
            self.pgconn.finish()
            raise


def limit_silence(gen: PQGen[T], max_seconds: float) -> PQGen[T]:
    """Run a generator of psycopg, which is sent whether its socket is ready. Raise ServerSilent if it is not for too long."""
    try:
        wanted = next(gen)
        silent_since = time.monotonic()
        while True:
            ready = yield wanted
            if ready:
                silent_since = time.monotonic()
            elif time.monotonic() - silent_since > max_seconds:
                raise ServerSilent(f"the server did not answer within {max_seconds:g} s")
            wanted = gen.send(ready)
    except StopIteration as end:
        value: T = end.value
        return value

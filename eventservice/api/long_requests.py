"""Limits for requests that occupy a worker of the web tier for long: those that wait for a call to end, and expensive reads
such as exports and statistics. Without them, a few clients would occupy every worker, and health checks would fail.

The settings say how many there may be on one machine. A web server that has too few workers for that allows fewer: one
worker is left for everything else.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.conf import settings

from eventservice.api.problems import Problem
from eventservice.kernel.logging import get_logger
from eventservice.kernel.machine_slots import reserve_slot

log = get_logger(__name__)

# Most expensive reads take less than this. A request that waits for one occupies a worker, too.
MAX_WAIT_FOR_READ_SECONDS = 0.3

# The workers of this web server, as far as it has said so: the development server answers each request in a thread.
_workers: int | None = None


def set_workers(workers: int | None) -> None:
    """Set how many requests this web server can answer at a time. Log a warning if the settings need more."""
    global _workers
    _workers = workers
    if (get_max_waiters(), get_max_reads()) == (settings.API_MAX_WAITERS, settings.MAX_EXPENSIVE_READS):
        return
    log.warning(
        "too_few_workers",
        workers=workers,
        needed=settings.API_MAX_WAITERS + settings.MAX_EXPENSIVE_READS + 1,
        max_waiters=get_max_waiters(),
        max_expensive_reads=get_max_reads(),
    )


def get_max_reads() -> int:
    if _workers is None:
        return int(settings.MAX_EXPENSIVE_READS)
    # A single worker has to do everything.
    return max(1, min(settings.MAX_EXPENSIVE_READS, _workers - 1))


def get_max_waiters() -> int:
    if _workers is None:
        return int(settings.API_MAX_WAITERS)
    return max(0, min(settings.API_MAX_WAITERS, _workers - get_max_reads() - 1))


@contextmanager
def limit_waiters() -> Iterator[bool]:
    """Run a wait for a call in this context. Yield False if too many others are waiting."""
    with reserve_slot("waiting", get_max_waiters()) as is_reserved:
        yield is_reserved


@contextmanager
def limit_expensive_reads() -> Iterator[None]:
    """Run an expensive read in this context. Raise Problem if too many others are running."""
    with reserve_slot("reading", get_max_reads(), max_wait_seconds=MAX_WAIT_FOR_READ_SECONDS) as is_reserved:
        if not is_reserved:
            detail = "Other exports or statistics are being computed. Try again in a moment."
            raise Problem(429, "busy", detail, headers={"Retry-After": "1"})
        yield

"""A limit for reads that take long, such as exports and statistics. Without it, a few clients would occupy every worker of
the web tier."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.conf import settings

from eventservice.api.problems import Problem
from eventservice.kernel.machine_slots import reserve_slot

# Most of these reads take less than this. A request that waits for one occupies a worker, too.
MAX_WAIT_SECONDS = 0.3


@contextmanager
def limit_expensive_reads() -> Iterator[None]:
    """Run an expensive read in this context. Raise Problem if too many others are running."""
    with reserve_slot(
        "reading", settings.MAX_EXPENSIVE_READS, max_wait_seconds=MAX_WAIT_SECONDS
    ) as is_reserved:
        if not is_reserved:
            detail = "Other exports or statistics are being computed. Try again in a moment."
            raise Problem(429, "busy", detail, headers={"Retry-After": "1"})
        yield

"""A database that is away, or busy for too long, ends nothing that goes on in the background."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import structlog
from django.db import DatabaseError, InterfaceError, connection

log = structlog.get_logger(__name__)

PAUSE_SECONDS = 1.0


@contextmanager
def weathering(longest_pause: float = PAUSE_SECONDS) -> Iterator[None]:
    """A step breaks off, and the next comes later."""
    try:
        yield
    except (DatabaseError, InterfaceError):
        log.exception("step_broken_off")
        connection.close_if_unusable_or_obsolete()
        time.sleep(min(longest_pause, PAUSE_SECONDS))

"""Slots that the processes of one machine share: they bound what would otherwise occupy every worker of the web tier.

A slot is a name in Linux's abstract socket namespace. Only one process on the machine can bind it, and the kernel frees
it when that process ends, however it ends.
"""

from __future__ import annotations

import hashlib
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

from django.conf import settings
from django.db import connection

# How long a waiting process pauses before it looks again.
POLL_SECONDS = 0.02


@contextmanager
def reserve_slot(purpose: str, count: int, *, max_wait_seconds: float = 0.0) -> Iterator[bool]:
    """Reserve one of the `count` slots of a purpose. Yield False if all of them are taken, and stay so while waiting."""
    slot = _wait_for_slot(purpose, count, max_wait_seconds)
    try:
        yield slot is not None
    finally:
        if slot is not None:
            slot.close()


def _wait_for_slot(purpose: str, count: int, seconds: float) -> socket.socket | None:
    deadline = time.monotonic() + seconds
    while (slot := _bind_slot(purpose, count)) is None and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    return slot


def _bind_slot(purpose: str, count: int) -> socket.socket | None:
    for number in range(count):
        slot = socket.socket(socket.AF_UNIX)
        try:
            slot.bind(f"\0eventservice-{purpose}-{_hash_deployment()}-{number}")
        except OSError:
            slot.close()
        else:
            return slot
    return None


def _hash_deployment() -> str:
    """Return a name that keeps two systems on one machine from sharing slots."""
    deployment = f"{settings.SECRET_KEY} {connection.settings_dict['NAME']}"
    return hashlib.sha256(deployment.encode()).hexdigest()[:24]

"""A limit for requests that wait for a call (`?wait=`). Each of them occupies a worker of the web tier.

A slot is a name in Linux's abstract socket namespace. Only one process on the machine can bind it, and the kernel frees
it when that process ends, however it ends.
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from django.conf import settings
from django.db import connection


@contextmanager
def reserve_waiting_slot() -> Iterator[bool]:
    """Reserve one of API_MAX_WAITERS slots. Yield False if all are taken."""
    slot = _bind_slot()
    try:
        yield slot is not None
    finally:
        if slot is not None:
            slot.close()


def _bind_slot() -> socket.socket | None:
    for number in range(settings.API_MAX_WAITERS):
        slot = socket.socket(socket.AF_UNIX)
        try:
            slot.bind(f"\0eventservice-waiting-{_hash_deployment()}-{number}")
        except OSError:
            slot.close()
        else:
            return slot
    return None


def _hash_deployment() -> str:
    """Return a name that keeps two systems on one machine from sharing slots."""
    deployment = f"{settings.SECRET_KEY} {connection.settings_dict['NAME']}"
    return hashlib.sha256(deployment.encode()).hexdigest()[:24]

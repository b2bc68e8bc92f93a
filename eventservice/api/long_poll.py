"""How many requests may wait for a call at a time (`?wait=`): each holds a worker of the web tier, and the others
are for everybody else.

A place is a name in Linux's abstract socket namespace: whoever has bound it has the place, on the whole machine, and
the kernel gives it back when its holder is gone, however it went.
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
    """Whether there was one."""
    place = _take_place()
    try:
        yield place is not None
    finally:
        if place is not None:
            place.close()


def _take_place() -> socket.socket | None:
    for number in range(settings.API_MAX_WAITERS):
        place = socket.socket(socket.AF_UNIX)
        try:
            place.bind(f"\0eventservice-waiting-{_deployment()}-{number}")
        except OSError:
            place.close()
        else:
            return place
    return None


def _deployment() -> str:
    """Two systems on one machine do not take each other's places."""
    named = f"{settings.SECRET_KEY} {connection.settings_dict['NAME']}"
    return hashlib.sha256(named.encode()).hexdigest()[:24]

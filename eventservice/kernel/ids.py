"""Identifiers: UUIDv7, made by the application before the insert, so that keys grow with time."""

import random
import time
import uuid

import uuid6


def new_id() -> uuid.UUID:
    """RFC 9562, method 3: milliseconds, then the fraction of the millisecond in the next 12 bits, then chance.

    `uuid6.uuid7()` keeps its ids in order by moving the clock a whole millisecond on for each: a process that
    makes thousands a second would soon date them minutes ahead of the others'.
    """
    milliseconds, nanoseconds = divmod(time.time_ns(), 1_000_000)
    fraction = nanoseconds * 4096 // 1_000_000
    # An id is no secret: the process's own generator will do (Python seeds it anew after a fork).
    return uuid6.UUID(int=milliseconds << 80 | fraction << 64 | random.getrandbits(62), version=7)

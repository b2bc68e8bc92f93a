"""A clock that nobody sets, and that goes on while the machine is suspended or the process is frozen."""

from __future__ import annotations

import time


def read_boot_time() -> float:
    """Return the seconds since the machine was started. `time.monotonic()` leaves out the time of a suspension."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)

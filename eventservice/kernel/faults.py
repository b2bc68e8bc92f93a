"""Points at which a test can make the process fail. They do nothing unless FAULTS names them.

FAULTS is a comma-separated list of `point=action`. The action is `kill`, `stop`, `raise` or `delay:SECONDS`, and
optionally ends in `@N`: it then happens only on the Nth time that the point is passed. In production FAULTS is refused.
"""

from __future__ import annotations

import os
import re
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eventservice.kernel.env import Environment

VARIABLE = "FAULTS"


class InjectedFault(Exception):
    """Raised at a point for which FAULTS says `raise`."""


@dataclass
class _Armed:
    action: str
    seconds: float
    on_pass: int | None
    passes: int = 0


ENTRY = re.compile(r"([^=@\s]+)=(?:(kill|stop|raise)|(delay):(\d+(?:\.\d+)?))(?:@(\d+))?")


def check_faults(env: Environment, *, production: bool) -> None:
    """Report a value of FAULTS that cannot be parsed, and any value in production."""
    value = env.string(VARIABLE)
    if value and production:
        env.refuse(VARIABLE, "unset when ENVIRONMENT is production")
    try:
        _parse(value)
    except ValueError as problem:
        env.report(str(problem))


def _parse(value: str) -> dict[str, _Armed]:
    armed = {}
    for entry in filter(None, (part.strip() for part in value.split(","))):
        match = ENTRY.fullmatch(entry)
        if match is None:
            raise ValueError(
                f"{VARIABLE}: {entry!r} must be point=kill, =stop, =raise or =delay:SECONDS, optionally with @N"
            )
        point, action, delay, seconds, nth = match.groups()
        armed[point] = _Armed(action or delay, float(seconds or 0), int(nth) if nth else None)
    return armed


_armed: dict[str, _Armed] = {}
with suppress(ValueError):  # the settings report it
    _armed = _parse(os.environ.get(VARIABLE, ""))


def trigger_fault(point: str) -> None:
    """Fail in the way that FAULTS says for this point, if it says any."""
    if _armed and point in _armed:
        _act(point, _armed[point])


def _act(point: str, armed: _Armed) -> None:
    armed.passes += 1
    if armed.on_pass is not None and armed.passes != armed.on_pass:
        return
    match armed.action:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "delay":
            time.sleep(armed.seconds)
        case _:
            raise InjectedFault(point)

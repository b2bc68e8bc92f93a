"""Seams at which a test may make the process fail. They do nothing unless FAULTS names them.

FAULTS is a comma list of `point=action`, the action one of `kill`, `stop`, `raise`, `delay:SECONDS`, each
optionally `@N`: only on the Nth time that the point is passed.
"""

import os
import re
import signal
import time
from dataclasses import dataclass


class InjectedFault(Exception):
    """Raised where FAULTS says `raise`."""


@dataclass
class _Armed:
    action: str
    seconds: float
    on_pass: int | None
    passes: int = 0


FORM = re.compile(r"([^=@\s]+)=(?:(kill|stop|raise)|(delay):(\d+(?:\.\d+)?))(?:@(\d+))?")


def _parse(text: str) -> dict[str, _Armed]:
    armed = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        form = FORM.fullmatch(entry)
        if form is None:
            raise ValueError(
                f"FAULTS: {entry!r} is not point=kill|stop|raise|delay:SECONDS, optionally with @N"
            )
        point, action, delay, seconds, nth = form.groups()
        armed[point] = _Armed(action or delay, float(seconds or 0), int(nth) if nth else None)
    return armed


_armed = _parse(os.environ.get("FAULTS", ""))


def trigger_fault(point: str) -> None:
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

"""How instants, durations and ids are written in JSON, in queries and on the command line."""

from __future__ import annotations

import math
import re
import uuid
from datetime import UTC, datetime
from typing import overload

from eventservice.db.now import to_rfc3339

_INSTANT = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(:\d\d(\.\d{1,9})?)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
_SHORT_DURATION = re.compile(
    r"(?=\d)(?:(?P<d>\d{1,9})d)?(?:(?P<h>\d{1,9})h)?(?:(?P<m>\d{1,9})m)?(?:(?P<s>\d{1,12}(?:\.\d{1,6})?)s)?",
    re.ASCII,
)
_ISO_DURATION = re.compile(
    r"P(?=.)(?:(?P<w>\d{1,9})W)?(?:(?P<d>\d{1,9})D)?"
    r"(?:T(?=.)(?:(?P<h>\d{1,9})H)?(?:(?P<m>\d{1,9})M)?(?:(?P<s>\d{1,12}(?:\.\d{1,6})?)S)?)?",
    re.ASCII,
)
_UNIT_SECONDS = {"w": 604_800, "d": 86_400, "h": 3600, "m": 60, "s": 1}
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII | re.IGNORECASE)


def parse_instant(text: str) -> datetime | None:
    """Return an RFC 3339 time in UTC, or None if the text is not one."""
    if not _INSTANT.fullmatch(text):
        return None
    try:
        return datetime.fromisoformat(text.upper()).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def parse_duration(text: str) -> float | None:
    """Return the seconds of "90s", "1h30m" or "PT90S", or None if the text is no duration."""
    match = _SHORT_DURATION.fullmatch(text) or _ISO_DURATION.fullmatch(text)
    if match is None:
        return None
    return sum(
        float(value) * _UNIT_SECONDS[unit] for unit, value in match.groupdict().items() if value is not None
    )


def parse_uuid(text: str) -> uuid.UUID | None:
    """Return the UUID, or None if the text is not one in its usual form, with hyphens."""
    return uuid.UUID(text) if _UUID.fullmatch(text) else None


@overload
def format_instant(moment: datetime) -> str: ...
@overload
def format_instant(moment: None) -> None: ...
@overload
def format_instant(moment: datetime | None) -> str | None: ...


def format_instant(moment: datetime | None) -> str | None:
    """Return the time as RFC 3339 in UTC with milliseconds."""
    return None if moment is None else to_rfc3339(moment)


@overload
def format_duration(seconds: float) -> str: ...
@overload
def format_duration(seconds: None) -> None: ...
@overload
def format_duration(seconds: float | None) -> str | None: ...


def format_duration(seconds: float | None) -> str | None:
    """Return the duration in the largest unit that needs no fraction; one day is 24h."""
    if seconds is None:
        return None
    if seconds > 86_400 and not seconds % 86_400:
        return f"{seconds // 86_400:.0f}d"
    if seconds and not seconds % 3600:
        return f"{seconds // 3600:.0f}h"
    if seconds and not seconds % 60:
        return f"{seconds // 60:.0f}m"
    return f"{format_number(seconds)}s"


def format_number(number: float) -> str:
    """Return the number without trailing zeros."""
    return f"{number:.6f}".rstrip("0").rstrip(".") if math.isfinite(number) else str(number)


def escape_pointer(name: str) -> str:
    """Return the name as one step of a JSON pointer, without the slash."""
    return name.replace("~", "~0").replace("/", "~1")

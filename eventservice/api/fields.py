"""Reading the members of a JSON object: each as what it must be, with every fault noted and none raised.

Django REST framework's serializers take about 1 ms for a service call; a batch has a thousand. So this decides
what is valid, and serializers only describe it in the OpenAPI document (a test holds both together).
"""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from eventservice.api.problems import FieldError, InvalidRequest
from eventservice.db.now import rfc3339

MISSING: Any = object()
# So many members that nobody knows are named, of one object.
MOST_UNKNOWN = 20

_INSTANT = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(:\d\d(\.\d{1,9})?)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
_SHORT = re.compile(
    r"(?=\d)(?:(?P<d>\d{1,9})d)?(?:(?P<h>\d{1,9})h)?(?:(?P<m>\d{1,9})m)?(?:(?P<s>\d{1,12}(?:\.\d{1,6})?)s)?",
    re.ASCII,
)
_ISO = re.compile(
    r"P(?=.)(?:(?P<w>\d{1,9})W)?(?:(?P<d>\d{1,9})D)?"
    r"(?:T(?=.)(?:(?P<h>\d{1,9})H)?(?:(?P<m>\d{1,9})M)?(?:(?P<s>\d{1,12}(?:\.\d{1,6})?)S)?)?",
    re.ASCII,
)
_SECONDS = {"w": 604_800, "d": 86_400, "h": 3600, "m": 60, "s": 1}
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII | re.IGNORECASE)


def parse_instant(text: str) -> datetime | None:
    """An RFC 3339 time, in UTC; None: it is none."""
    if not _INSTANT.fullmatch(text):
        return None
    try:
        return datetime.fromisoformat(text.upper()).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def parse_duration(text: str) -> float | None:
    """Seconds of "90s", "1h30m" or "PT90S"; None: it is no duration."""
    match = _SHORT.fullmatch(text) or _ISO.fullmatch(text)
    if match is None:
        return None
    return sum(
        float(value) * _SECONDS[unit] for unit, value in match.groupdict().items() if value is not None
    )


def parse_uuid(text: str) -> uuid.UUID | None:
    return uuid.UUID(text) if _UUID.fullmatch(text) else None


def pointed(name: str) -> str:
    """A name as a step of a JSON pointer."""
    return "/" + name.replace("~", "~0").replace("/", "~1")


class Fields:
    """One object. `faults` is shared by all objects of a request."""

    __slots__ = ("_data", "_known", "at", "faults")

    def __init__(self, data: Mapping[str, Any], faults: list[FieldError], at: str = "") -> None:
        self._data = data
        self._known: set[str] = set()
        self.faults = faults
        self.at = at

    def __contains__(self, name: str) -> bool:
        return name in self._data

    def fault(self, name: str, rule: str) -> None:
        self.faults.append(FieldError(self.at + pointed(name), rule))

    def value(self, name: str, default: Any = MISSING) -> Any:
        """As it is. What has no default must be there; what has one may be null too."""
        self._known.add(name)
        value = self._data.get(name, MISSING)
        if value is MISSING:
            if default is MISSING:
                self.fault(name, "is required")
            return default
        if value is None and default is not MISSING:
            return default
        return value

    def _typed(self, name: str, kind: type | tuple[type, ...], called: str, default: Any) -> Any:
        value = self.value(name, default)
        if value is MISSING or value is default:
            return value
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            self.fault(name, f"must be {called}")
            return MISSING
        return value

    def text(self, name: str, default: Any = MISSING, *, most: int, least: int = 1) -> Any:
        value = self._typed(name, str, "a text", default)
        if value is MISSING or value is default:
            return default
        if not least <= len(value) <= most:
            self.fault(name, f"must be {least} to {most} characters long")
        elif _CONTROL.search(value):
            self.fault(name, "must be one line without control characters")
        else:
            return value
        return default

    def matching(self, name: str, pattern: re.Pattern[str], rule: str, default: Any = MISSING) -> Any:
        value = self._typed(name, str, "a text", default)
        if value is MISSING or value is default:
            return default
        if pattern.fullmatch(value):
            return value
        self.fault(name, f"must be {rule}")
        return default

    def choice(self, name: str, choices: Collection[str], default: Any = MISSING) -> Any:
        value = self.value(name, default)
        if value is MISSING or value is default:
            return default
        if isinstance(value, str) and value in choices:
            return value
        self.fault(name, "must be one of " + ", ".join(choices))
        return default

    def number(self, name: str, default: Any = MISSING, *, least: float, most: float) -> Any:
        value = self._typed(name, (int, float), "a number", default)
        if value is MISSING or value is default:
            return default
        if least <= value <= most:
            return float(value)
        self.fault(name, f"must be from {_shown(least)} to {_shown(most)}")
        return default

    def integer(self, name: str, default: Any = MISSING, *, least: int, most: int) -> Any:
        value = self._typed(name, int, "a whole number", default)
        if value is MISSING or value is default:
            return default
        if least <= value <= most:
            return value
        self.fault(name, f"must be from {least} to {most}")
        return default

    def boolean(self, name: str, default: Any = MISSING) -> Any:
        value = self._typed(name, bool, "true or false", default)
        return default if value is MISSING else value

    def instant(self, name: str, default: Any = MISSING) -> Any:
        return self._parsed(
            name, parse_instant, 'a time with an offset, such as "2026-03-01T12:00:00Z"', default
        )

    def identifier(self, name: str, default: Any = MISSING) -> Any:
        return self._parsed(name, parse_uuid, "a UUID", default)

    def duration(self, name: str, default: Any = MISSING, *, most: float, least: float = 0.0) -> Any:
        """Seconds."""
        rule = 'a duration, such as "90s", "2h" or "PT90S"'
        seconds = self._parsed(name, parse_duration, rule, default)
        if seconds is MISSING or seconds is default:
            return default
        if least <= seconds <= most:
            return seconds
        self.fault(name, f"must be from {format_duration(least)} to {format_duration(most)}")
        return default

    def _parsed(self, name: str, parse: Any, rule: str, default: Any) -> Any:
        value = self.value(name, default)
        if value is MISSING or value is default:
            return default
        parsed = parse(value) if isinstance(value, str) else None
        if parsed is None:
            self.fault(name, f"must be {rule}")
            return default
        return parsed

    def object(self, name: str, default: Any = MISSING) -> Any:
        """The object's own fields."""
        value = self._typed(name, dict, "an object", default)
        if value is MISSING or value is default:
            return default
        return Fields(value, self.faults, self.at + pointed(name))

    def texts(self, name: str, *, most: int, longest: int, required: bool = False) -> list[str]:
        """An array of labels."""
        values: list[str] | Any = self._typed(name, list, "an array of texts", MISSING if required else None)
        if values is MISSING or values is None:
            return []
        if len(values) > most:
            self.fault(name, f"must have at most {most} items")
            return []
        for index, value in enumerate(values):
            if wrong := wrong_text(value, longest):
                self.faults.append(FieldError(f"{self.at}{pointed(name)}/{index}", wrong))
        return list(values)

    def no_others(self) -> None:
        unknown = self._data.keys() - self._known
        for name in islice(unknown, MOST_UNKNOWN):
            self.fault(name[:200], "is not known here")
        if len(unknown) > MOST_UNKNOWN:
            rule = f"has {len(unknown) - MOST_UNKNOWN} more members that are not known here"
            self.faults.append(FieldError(self.at, rule))


def wrong_text(value: Any, longest: int) -> str | None:
    """The rule that a short label breaks."""
    if not isinstance(value, str):
        return "must be a text"
    if not 1 <= len(value) <= longest:
        return f"must be 1 to {longest} characters long"
    if _CONTROL.search(value) or value != value.strip():
        return "must be one line, without space at its ends"
    return None


def raise_if_invalid(faults: list[FieldError]) -> None:
    if faults:
        raise InvalidRequest(sorted(faults))


def format_instant(moment: datetime | None) -> str | None:
    return None if moment is None else rfc3339(moment)


def format_duration(seconds: float | None) -> str | None:
    """In the largest unit that says it without a fraction; one day is 24h."""
    if seconds is None:
        return None
    if seconds > 86_400 and not seconds % 86_400:
        return f"{seconds // 86_400:.0f}d"
    if seconds and not seconds % 3600:
        return f"{seconds // 3600:.0f}h"
    if seconds and not seconds % 60:
        return f"{seconds // 60:.0f}m"
    return f"{_shown(seconds)}s"


def _shown(number: float) -> str:
    return f"{number:.6f}".rstrip("0").rstrip(".") if math.isfinite(number) else str(number)

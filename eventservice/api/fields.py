"""Reading the members of a JSON object: each as what it must be, with every fault noted and none raised.

Django REST framework's serializers take about 1 ms for a service call; a batch has a thousand. So this decides
what is valid, and serializers only describe it in the OpenAPI document (a test holds both together).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from itertools import islice
from typing import Any

from eventservice.api.formats import (
    escape_pointer,
    format_duration,
    format_number,
    parse_duration,
    parse_instant,
    parse_uuid,
)
from eventservice.api.problems import FieldError, InvalidRequest

MISSING: Any = object()
# So many members that nobody knows are named, of one object.
MOST_UNKNOWN = 20

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def pointed(name: str) -> str:
    """A name as a step of a JSON pointer."""
    return "/" + escape_pointer(name)


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
        self.fault(name, f"must be from {format_number(least)} to {format_number(most)}")
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

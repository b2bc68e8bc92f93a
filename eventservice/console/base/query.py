"""Reading the query of a page: every error is collected, and none raised."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Collection
from datetime import datetime
from typing import Any

from django.http import QueryDict

from eventservice.api.formats import parse_duration, parse_instant, parse_uuid
from eventservice.api.pagination import read_cursor
from eventservice.api.parsers import is_storable
from eventservice.api.problems import FieldError, InvalidRequest
from eventservice.api.schema.queries import DEFAULT_LIMIT, MAX_LIMIT, MAX_TEXT_LENGTH

_NUMBER = re.compile(r"[0-9]{1,9}", re.ASCII)


class Query:
    """The parameters of one request. Like the members of a body: every fault is noted, and none raised."""

    def __init__(self, parameters: QueryDict, faults: list[FieldError]) -> None:
        self._parameters = parameters
        self._known: set[str] = set()
        self.faults = faults

    def fault(self, name: str, rule: str) -> None:
        self.faults.append(FieldError(f"/query/{name[:200]}", rule))

    def texts(self, name: str) -> list[str]:
        self._known.add(name)
        values = self._parameters.getlist(name)
        if any(not value or not is_storable(value) or len(value) > MAX_TEXT_LENGTH for value in values):
            self.fault(name, "must be a text, and not empty")
            return []
        return values

    def text(self, name: str, most: int = MAX_TEXT_LENGTH) -> str | None:
        values = self.texts(name)
        if len(values) > 1:
            self.fault(name, "must be given once")
        if values and len(values[0]) > most:
            self.fault(name, f"must be at most {most} characters long")
        return values[0] if values else None

    def choices(self, name: str, choices: Collection[str]) -> frozenset[str]:
        values = self.texts(name)
        if not set(values) <= set(choices):
            self.fault(name, "must be one of " + ", ".join(choices))
        return frozenset(values) & frozenset(choices)

    def choice(self, name: str, choices: Collection[str], default: str) -> str:
        value = self.text(name)
        if value is None or value in choices:
            return value or default
        self.fault(name, "must be one of " + ", ".join(choices))
        return default

    def instant(self, name: str) -> datetime | None:
        # In a query a `+` that nobody encoded is a space.
        moment: datetime | None = self._parsed(
            name, lambda text: parse_instant(text.replace(" ", "+")), "a time with an offset"
        )
        return moment

    def identifier(self, name: str) -> uuid.UUID | None:
        found: uuid.UUID | None = self._parsed(name, parse_uuid, "a UUID")
        return found

    def duration(self, name: str, *, most: float) -> float | None:
        seconds: float | None = self._parsed(name, parse_duration, 'a duration, such as "30s"')
        return None if seconds is None else min(seconds, most)

    def number(self, name: str, default: int, *, least: int, most: int) -> int:
        value = self.text(name)
        if value is None:
            return default
        if _NUMBER.fullmatch(value) and least <= int(value) <= most:
            return int(value)
        self.fault(name, f"must be a whole number from {least} to {most}")
        return default

    def limit(self) -> int:
        return self.number("limit", DEFAULT_LIMIT, least=1, most=MAX_LIMIT)

    def cursor(self, list_id: str) -> list[Any] | None:
        """Where the page begins. A cursor is good for the very list that it came from, and nobody can make one up."""
        try:
            return read_cursor(self.text("cursor"), list_id)
        except InvalidRequest as invalid:
            self.faults += invalid.errors
            return None

    def no_others(self) -> None:
        for name in self._parameters.keys() - self._known:
            self.fault(name, "is not known here")

    def _parsed(self, name: str, parse: Callable[[str], Any], rule: str) -> Any:
        value = self.text(name)
        if value is None:
            return None
        parsed = parse(value)
        if parsed is None:
            self.fault(name, f"must be {rule}")
        return parsed


def drop_empty_params(parameters: QueryDict) -> QueryDict:
    """Return the parameters without the empty ones, which forms send too, and without repeated values."""
    kept = QueryDict(mutable=True)
    for name, values in parameters.lists():
        stripped = [value.strip() for value in values]
        if distinct := list(dict.fromkeys(filter(None, stripped))):
            kept.setlist(name, distinct)
    return kept

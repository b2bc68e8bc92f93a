"""The query of a page: its errors are collected, not raised."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Collection
from datetime import UTC, datetime, tzinfo
from typing import Any

from django.http import QueryDict

from eventservice.api.formats import parse_instant, parse_uuid
from eventservice.api.pagination import read_cursor
from eventservice.api.parsers import is_storable
from eventservice.api.problems import FieldError, InvalidRequest
from eventservice.api.schema.queries import DEFAULT_LIMIT, MAX_LIMIT, MAX_TEXT_LENGTH
from eventservice.console.base.time_zone import find_zone

_NUMBER = re.compile(r"[0-9]{1,9}", re.ASCII)


class Query:
    """The parameters of one request. What is wrong with them is appended to `errors`; nothing is raised."""

    def __init__(self, parameters: QueryDict, errors: list[FieldError]) -> None:
        self._parameters = parameters
        self._known: set[str] = set()
        self.errors = errors

    def add_error(self, name: str, rule: str) -> None:
        self.errors.append(FieldError(f"/query/{name[:200]}", rule))

    def texts(self, name: str) -> list[str]:
        self._known.add(name)
        values = self._parameters.getlist(name)
        if any(not value or not is_storable(value) or len(value) > MAX_TEXT_LENGTH for value in values):
            self.add_error(name, "must be a string, and not empty")
            return []
        return values

    def text(self, name: str, max_length: int = MAX_TEXT_LENGTH) -> str | None:
        values = self.texts(name)
        if len(values) > 1:
            self.add_error(name, "must be given once")
        if values and len(values[0]) > max_length:
            self.add_error(name, f"must be at most {max_length} characters long")
        return values[0] if values else None

    def choices(self, name: str, choices: Collection[str]) -> frozenset[str]:
        values = self.texts(name)
        if not set(values) <= set(choices):
            self.add_error(name, "must be one of " + ", ".join(choices))
        return frozenset(values) & frozenset(choices)

    def choice(self, name: str, choices: Collection[str], default: str) -> str:
        value = self.text(name)
        if value is None or value in choices:
            return value or default
        self.add_error(name, "must be one of " + ", ".join(choices))
        return default

    def identifier(self, name: str) -> uuid.UUID | None:
        found: uuid.UUID | None = self._parse(name, parse_uuid, "a UUID")
        return found

    def number(self, name: str, default: int, *, minimum: int, maximum: int) -> int:
        value = self.text(name)
        if value is None:
            return default
        if _NUMBER.fullmatch(value) and minimum <= int(value) <= maximum:
            return int(value)
        self.add_error(name, f"must be a whole number from {minimum} to {maximum}")
        return default

    def limit(self) -> int:
        return self.number("limit", DEFAULT_LIMIT, minimum=1, maximum=MAX_LIMIT)

    def zone(self, name: str = "zone") -> tzinfo:
        """Return the zone of local times in the query. It is UTC if the query does not say."""
        zone = find_zone(self.text(name) or "UTC")
        if zone is None:
            self.add_error(name, "must be a time zone, such as Europe/Berlin")
        return zone or UTC

    def moment(self, name: str, zone: tzinfo) -> datetime | None:
        """Accept what the API accepts, and also times without an offset and dates (midnight), which are in `zone`."""
        text = self.text(name)
        if text is None:
            return None
        # In a query, a `+` that was not encoded arrives as a space.
        moment = parse_instant(text) or parse_instant(text.replace(" ", "+"))
        if moment is None and (local := parse_instant(f"{text}Z") or parse_instant(f"{text}T00:00Z")):
            moment = local.replace(tzinfo=zone)
        # Every zone has the years between the first and the last that a datetime supports.
        if moment is not None and 1 < moment.year < 9999:
            return moment.astimezone(UTC)
        self.add_error(name, 'must be a time, such as "2026-03-01T12:00"')
        return None

    def cursor(self, list_id: str) -> list[Any] | None:
        """Return where the page begins. A cursor is valid only for the list that it came from, and cannot be forged."""
        try:
            return read_cursor(self.text("cursor"), list_id)
        except InvalidRequest as invalid:
            self.errors += invalid.errors
            return None

    def refuse_unknown(self) -> None:
        for name in self._parameters.keys() - self._known:
            self.add_error(name, "is not a known filter")

    def _parse(self, name: str, parse: Callable[[str], Any], rule: str) -> Any:
        value = self.text(name)
        if value is None:
            return None
        parsed = parse(value)
        if parsed is None:
            self.add_error(name, f"must be {rule}")
        return parsed


def drop_empty_params(parameters: QueryDict) -> QueryDict:
    """Return the parameters without the empty ones, which forms send too, and without repeated values."""
    kept = QueryDict(mutable=True)
    for name, values in parameters.lists():
        stripped = [value.strip() for value in values]
        if distinct := list(dict.fromkeys(filter(None, stripped))):
            kept.setlist(name, distinct)
    return kept

"""Forms as JSON documents: the Pydantic models of the API validate them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from django.http import QueryDict

from eventservice.api.parsers import is_storable
from eventservice.api.problems import FieldError
from eventservice.api.schema.base import M, validate
from eventservice.kernel.errors import DomainError

_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,18}", re.ASCII)


class Form:
    """The fields of a submitted form as a document, and what is wrong with it."""

    def __init__(
        self,
        sent: QueryDict,
        texts: Collection[str] = (),
        numbers: Collection[str] = (),
        lines: Collection[str] = (),
        several: Collection[str] = (),
    ) -> None:
        self.sent = sent
        self.faults: list[FieldError] = []
        document: dict[str, Any] = {name: sent.get(name, "").strip() for name in texts}
        document |= {name: _parse_number(sent.get(name, "")) for name in numbers}
        document |= {name: _split_lines(sent.get(name, "")) for name in lines}
        document |= {name: sent.getlist(name) for name in several}
        for name in [name for name, value in document.items() if not _is_storable(value)]:
            self.faults.append(FieldError(f"/{name}", "must not have a NUL character"))
            del document[name]
        self.document = document

    def parse(self, model: type[M]) -> M | None:
        """Return the form as a model of the API, or None if anything is wrong: `faults` lists it all."""
        document, errors = validate(model, self.document)
        self.faults += errors
        return None if self.faults else document

    def leave_out_empty(self, *names: str) -> None:
        """Remove these members if they are empty."""
        for name in names:
            if not self.document.get(name):
                self.document.pop(name, None)

    def add_error(self, error: DomainError) -> None:
        """Add what the domain refused, at the fields that it names."""
        self.faults += [FieldError(f"/{name}", rule) for name, rule in error.errors.items()]
        if not error.errors:
            self.faults.append(FieldError("", error.message))

    @property
    def wrong(self) -> Mapping[str, str]:
        """The rules that each field breaks."""
        return describe_by_field(self.faults)


def describe_by_field(errors: Iterable[FieldError]) -> dict[str, str]:
    """Return the rules that each top-level member breaks, by its name. In a list, they name the line."""
    rules = defaultdict(list)
    for pointer, rule in errors:
        _, name, *line = [*pointer.split("/"), ""][:3]
        rules[name].append(f"line {int(line[0]) + 1}: {rule}" if line and line[0].isdigit() else rule)
    return {name: "; ".join(broken) for name, broken in rules.items()}


def drop_empty_params(parameters: QueryDict) -> QueryDict:
    """Return the parameters without the empty ones, which forms send too, and without repeated values."""
    kept = QueryDict(mutable=True)
    for name, values in parameters.lists():
        stripped = [value.strip() for value in values]
        if distinct := list(dict.fromkeys(filter(None, stripped))):
            kept.setlist(name, distinct)
    return kept


def _parse_number(text: str) -> int | str | None:
    text = text.strip()
    return int(text) if _WHOLE_NUMBER.fullmatch(text) else text


def _split_lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def _is_storable(value: Any) -> bool:
    values = value if isinstance(value, list) else [value]
    return all(is_storable(text) for text in values if isinstance(text, str))

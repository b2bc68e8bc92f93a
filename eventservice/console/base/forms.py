"""A form's texts as the members of a JSON object, so that the rules of the API are those of the console too."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any

from django.http import QueryDict

from eventservice.api.parsers import is_storable
from eventservice.api.problems import FieldError
from eventservice.api.schema.base import M, validate
from eventservice.kernel.errors import DomainError

_WHOLE = re.compile(r"-?[0-9]{1,18}", re.ASCII)


class Form:
    """What was sent, and what is wrong with it, field by field."""

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
        document |= {name: _number(sent.get(name, "")) for name in numbers}
        document |= {name: _lines(sent.get(name, "")) for name in lines}
        document |= {name: sent.getlist(name) for name in several}
        for name in [name for name, value in document.items() if not _clean(value)]:
            self.faults.append(FieldError(f"/{name}", "must not have a NUL character"))
            del document[name]
        self.document = document

    def parse(self, model: type[M]) -> M | None:
        """Return the form as a document of the API, or None: then `faults` has everything that is wrong."""
        document, errors = validate(model, self.document)
        self.faults += errors
        return None if self.faults else document

    def leave_out_empty(self, *names: str) -> None:
        """An empty text says nothing."""
        for name in names:
            if not self.document.get(name):
                self.document.pop(name, None)

    def take(self, error: DomainError) -> None:
        """What the domain refused, at its fields."""
        self.faults += [FieldError(f"/{name}", rule) for name, rule in error.faults.items()]
        if not error.faults:
            self.faults.append(FieldError("", error.message))

    @property
    def wrong(self) -> Mapping[str, str]:
        """By field. A fault of one line of several names the line."""
        found = defaultdict(list)
        for pointer, rule in self.faults:
            _, name, *line = [*pointer.split("/"), ""][:3]
            found[name].append(f"line {int(line[0]) + 1}: {rule}" if line and line[0].isdigit() else rule)
        return {name: "; ".join(rules) for name, rules in found.items()}


def drop_empty_params(given: QueryDict) -> QueryDict:
    """A form sends its empty fields too: they ask for nothing. What is given twice is given once."""
    kept = QueryDict(mutable=True)
    for name, values in given.lists():
        texts = [value.strip() for value in values]
        if said := list(dict.fromkeys(filter(None, texts))):
            kept.setlist(name, said)
    return kept


def _number(text: str) -> int | str | None:
    text = text.strip()
    return int(text) if _WHOLE.fullmatch(text) else text


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def _clean(value: Any) -> bool:
    values = value if isinstance(value, list) else [value]
    return all(is_storable(text) for text in values if isinstance(text, str))

"""A row's key as one text: what addresses, checkboxes and Django's history name it by.

Django's admin refuses composite keys because it makes that text by `str(row.pk)` and reads it by `pk.to_python`.
Here it is `<first>~<second>…`, and everything else of the admin stays as it is.
"""

from __future__ import annotations

import uuid
from typing import Any, TypeVar

from django.core.exceptions import ValidationError
from django.db import models
from django.http.response import HttpResponseBase

SEPARATOR = "~"

Response = TypeVar("Response", bound=HttpResponseBase)


def format_key(row: Any) -> str:
    return SEPARATOR.join(map(str, row.pk)) if isinstance(row.pk, tuple) else str(row.pk)


def parse_key(model: type[models.Model], text: str) -> dict[str, Any] | None:
    """The columns of the key that a text says; None: it says none. Only a key's last column may hold the joint."""
    fields = model._meta.pk_fields
    parts = text.split(SEPARATOR, len(fields) - 1)
    # PostgreSQL's driver refuses NUL, long after anybody expects it.
    if len(parts) != len(fields) or "\x00" in text:
        return None
    try:
        return {field.attname: field.to_python(part) for field, part in zip(fields, parts, strict=True)}
    except (ValidationError, ValueError):
        return None


def parse_uuid(text: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(text)
    except ValueError:
        return None


class KeyedRow:
    """A row as Django's templates and history see it: they make addresses of `pk`."""

    def __init__(self, row: Any) -> None:
        self.pk = format_key(row)
        self._meta = row._meta
        self._text = str(row)

    def __str__(self) -> str:
        return self._text


def with_text_key(row: Any) -> Any:
    return KeyedRow(row) if row is not None and isinstance(row.pk, tuple) else row


def use_text_keys(response: Response) -> Response:
    """The same for the row that a page is about; it has not been rendered yet."""
    context = getattr(response, "context_data", None) or {}
    for name in ("original", "object"):
        if isinstance(context.get(name), models.Model):
            context[name] = with_text_key(context[name])
    return response

"""Composite primary keys in the admin. Delete this module when Django's admin supports them.

Django's admin identifies a row by `str(row.pk)` in URLs, checkboxes and its history, and therefore refuses models with
composite primary keys. Here, the key of such a row is the string `<first>~<second>…`; RoleAdmin and ConsoleSite use it
wherever Django's admin would use the primary key.
"""

from __future__ import annotations

import uuid
from typing import Any, TypeVar

from django.core.exceptions import ValidationError
from django.db import models
from django.http.response import HttpResponseBase

SEPARATOR = "~"

Response = TypeVar("Response", bound=HttpResponseBase)


def format_key(row: models.Model) -> str:
    return SEPARATOR.join(map(str, row.pk)) if isinstance(row.pk, tuple) else str(row.pk)


def parse_key(model: type[models.Model], text: str) -> dict[str, object] | None:
    """Return the columns of the key that a string stands for, or None. Only the last column may contain the separator."""
    fields = model._meta.pk_fields
    parts = text.split(SEPARATOR, len(fields) - 1)
    # PostgreSQL's driver raises an error for NUL only when the query runs.
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
    """Stands for a row in Django's templates and history, which build URLs from `pk`."""

    def __init__(self, row: models.Model) -> None:
        self.pk = format_key(row)
        self._meta = row._meta
        self._text = str(row)

    def __str__(self) -> str:
        return self._text


def with_text_key(row: models.Model | None) -> Any:
    """Return the row, or if its key is composite, what stands for it."""
    return KeyedRow(row) if row is not None and isinstance(row.pk, tuple) else row


def use_text_keys(response: Response) -> Response:
    """Replace the row in the context of a response that has not been rendered yet."""
    context = getattr(response, "context_data", None) or {}
    for name in ("original", "object"):
        if isinstance(context.get(name), models.Model):
            context[name] = with_text_key(context[name])
    return response

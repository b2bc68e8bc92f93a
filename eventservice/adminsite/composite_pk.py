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

JOINT = "~"

Response = TypeVar("Response", bound=HttpResponseBase)


def text_of(row: Any) -> str:
    return JOINT.join(map(str, row.pk)) if isinstance(row.pk, tuple) else str(row.pk)


def key_of(model: type[models.Model], text: str) -> dict[str, Any] | None:
    """The columns of the key that a text says; None: it says none. Only a key's last column may hold the joint."""
    fields = model._meta.pk_fields
    parts = text.split(JOINT, len(fields) - 1)
    # PostgreSQL's driver refuses NUL, long after anybody expects it.
    if len(parts) != len(fields) or "\x00" in text:
        return None
    try:
        return {field.attname: field.to_python(part) for field, part in zip(fields, parts, strict=True)}
    except (ValidationError, ValueError):
        return None


def uuid_of(text: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(text)
    except ValueError:
        return None


class Named:
    """A row as Django's templates and history see it: they make addresses of `pk`."""

    def __init__(self, row: Any) -> None:
        self.pk = text_of(row)
        self._meta = row._meta
        self._text = str(row)

    def __str__(self) -> str:
        return self._text


def named(row: Any) -> Any:
    return Named(row) if row is not None and isinstance(row.pk, tuple) else row


def with_named_rows(response: Response) -> Response:
    """The same for the row that a page is about; it has not been rendered yet."""
    context = getattr(response, "context_data", None) or {}
    for name in ("original", "object"):
        if isinstance(context.get(name), models.Model):
            context[name] = named(context[name])
    return response

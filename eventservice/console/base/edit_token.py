"""Edit tokens: a form sends what it showed, so that it cannot overwrite changes that its user has not seen."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

from eventservice.db.bulk import to_json
from eventservice.kernel.errors import Conflict


class EditConflict(Conflict):
    """The row was changed after the form was opened."""


def compute_edit_token(row: Any, columns: Iterable[str]) -> str:
    """Return a digest of these columns of a row."""
    values = [getattr(row, column) for column in columns]
    return hashlib.sha256(to_json(values).encode()).hexdigest()


def require_unchanged(row: Any, columns: Iterable[str], token: str) -> None:
    """Raise EditConflict unless these columns still have the values for which the token was computed."""
    if token != compute_edit_token(row, columns):
        raise EditConflict("changed_meanwhile", "Somebody else has changed it.")

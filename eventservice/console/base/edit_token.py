"""Edit tokens: a form sends what it showed, so that it cannot overwrite changes that its user has not seen."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

from eventservice.db.bulk import to_json


def compute_edit_token(row: Any, columns: Iterable[str]) -> str:
    """Return a digest of these columns of a row."""
    values = [getattr(row, column) for column in columns]
    return hashlib.sha256(to_json(values).encode()).hexdigest()

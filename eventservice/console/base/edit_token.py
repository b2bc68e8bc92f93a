"""A form says what it showed, so that what somebody else has changed meanwhile is not written over unseen."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

from eventservice.db.bulk import to_json


def compute_edit_token(row: Any, columns: Iterable[str]) -> str:
    values = [getattr(row, column) for column in columns]
    return hashlib.sha256(to_json(values).encode()).hexdigest()

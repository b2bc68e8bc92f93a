"""Counts that stop: nobody needs to know a million exactly, and to count it takes longer than a page may."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet

MAX_COUNTED = 10_000


def count_capped(rows: QuerySet[Any], key: str = "tenant_id") -> int:
    """One more than MAX_COUNTED: there are more. `key` begins the indexes, so that one of them alone tells."""
    return rows.order_by().values_list(key)[: MAX_COUNTED + 1].count()


def format_capped(count: int) -> str:
    return f"{MAX_COUNTED:,}+" if count > MAX_COUNTED else f"{count:,}"

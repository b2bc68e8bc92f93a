"""Counts that stop: nobody needs to know a million exactly, and to count it takes longer than a page may."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet

MOST_COUNTED = 10_000


def capped_count(rows: QuerySet[Any], key: str = "tenant_id") -> int:
    """One more than MOST_COUNTED: there are more. `key` begins the indexes, so that one of them alone tells."""
    return rows.order_by().values_list(key)[: MOST_COUNTED + 1].count()


def capped_text(count: int) -> str:
    return f"{MOST_COUNTED:,}+" if count > MOST_COUNTED else f"{count:,}"

"""Counts up to a maximum: nobody needs to know a million exactly, and counting it would take too long for a page."""

from __future__ import annotations

from django.db.models import Model, QuerySet

MAX_COUNTED = 10_000


def count_capped(rows: QuerySet[Model], key: str = "tenant_id", max_counted: int = MAX_COUNTED) -> int:
    """Count rows; one more than `max_counted` means "more than that".

    `key` is the first column of the table's indexes, so that an index alone answers.
    """
    return rows.order_by().values_list(key)[: max_counted + 1].count()


def format_capped(count: int) -> str:
    return f"{MAX_COUNTED:,}+" if count > MAX_COUNTED else f"{count:,}"

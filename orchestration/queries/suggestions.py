"""Suggest names, hosts and tags for filters: those of the latest calls, and those that an index finds by their beginning."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator, Sequence

from django.db.models import F

from eventservice.db.sql import match_prefix
from orchestration.models import ServiceCall, ServiceCallTag
from orchestration.states import FAVORITE

COLUMNS = ("name", "host", "tag")
# How many rows are read in all, and of each tenant at least.
MAX_ROWS = 4000
MIN_ROWS_OF_TENANT = 100


def list_suggestions(tenant_ids: Sequence[uuid.UUID], column: str, text: str, limit: int) -> list[str]:
    """Return values that contain the text in any case. Those that begin with it come first, then the most frequent."""
    rows = max(MIN_ROWS_OF_TENANT, MAX_ROWS // max(1, len(tenant_ids)))
    wanted = text.casefold()
    found: Counter[str] = Counter()
    for tenant_id in tenant_ids:
        found.update(value for value in _read_latest(tenant_id, column, rows) if wanted in value.casefold())
        if text:
            # Values of older calls.
            found.update(dict.fromkeys(_read_by_prefix(tenant_id, column, text, rows), 1))
    found.pop(FAVORITE if column == "tag" else "", None)
    ranked = sorted(found, key=lambda value: (not value.casefold().startswith(wanted), -found[value], value))
    return ranked[:limit]


def _read_latest(tenant_id: uuid.UUID, column: str, limit: int) -> Iterator[str]:
    if column == "tag":
        tags = ServiceCallTag.objects.for_tenant(tenant_id).order_by("-service_call_id", "-tag")
        return iter(tags.values_list("tag", flat=True)[:limit])
    calls = ServiceCall.objects.for_tenant(tenant_id).order_by("-submitted_at")
    return iter(calls.values_list(column, flat=True)[:limit])


def _read_by_prefix(tenant_id: uuid.UUID, column: str, prefix: str, limit: int) -> Iterator[str]:
    """Yield the first values of the index. If one of them is very frequent, it hides those after it."""
    if column == "tag":
        tags = ServiceCallTag.objects.for_tenant(tenant_id).filter(match_prefix(F("tag"), prefix))
        return iter(tags.order_by().values_list("tag", flat=True)[:limit])
    calls = ServiceCall.objects.for_tenant(tenant_id).filter(match_prefix(F(column), prefix))
    return iter(calls.order_by().values_list(column, flat=True)[:limit])

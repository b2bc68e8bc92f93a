"""The audit log: who did what, when, and to what."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, QueryDict
from django.urls import reverse

from eventservice.api.formats import parse_uuid
from eventservice.api.problems import FieldError
from eventservice.console.base.query import Query, drop_empty_params
from eventservice.console.base.tenant_select import list_tenant_options
from eventservice.console.base.views import ConsoleView
from eventservice.db.now import db_now
from eventservice.operators.models import OperatorAction
from eventservice.tenants.directory import find_tenant_names

PAGE_SIZE = 50
# How many rows a page examines for filters without an index: user, action and tenant.
MAX_EXAMINED = 5000
# The form suggests the actions and users of this many of the latest rows.
SUGGESTION_ROWS = 300


class AuditLogPage(ConsoleView):
    nav = "audit-log"
    template = "console/audit_log.html"

    def get(self, request: HttpRequest) -> HttpResponse:
        errors: list[FieldError] = []
        parameters = drop_empty_params(request.GET)
        filters, cursor = _read_filters(Query(parameters, errors))
        rows, next_cursor = ([], None) if errors else list_actions(filters, cursor)
        names = find_tenant_names([row.tenant_id for row in rows])
        latest = OperatorAction.across_tenants.order_by("-id").values_list("action", "user")
        latest = latest[:SUGGESTION_ROWS]
        context = {
            "now": db_now(),
            "rows": [_build_row(row, names) for row in rows],
            "next": next_cursor,
            "cursor": cursor,
            "filters": filters,
            "filtered": bool(filters),
            "query": _build_query_string(parameters),
            "errors": errors,
            "tenants": list_tenant_options(filters.get("tenant_id")),
            "known_actions": sorted({action for action, _ in latest}),
            "known_users": sorted({user for _, user in latest}),
            "max_examined": MAX_EXAMINED,
        }
        return self.render(context, status=400 if errors else 200)


def _read_filters(query: Query) -> tuple[dict[str, Any], int | None]:
    filters = {
        "user": query.text("user", max_length=150),
        "action": query.text("action", max_length=40),
        "tenant_id": query.identifier("tenant"),
        "subject": query.text("subject", max_length=255),
    }
    cursor = query.number("cursor", 0, minimum=1, maximum=999_999_999) or None
    return {name: value for name, value in filters.items() if value is not None}, cursor


def _build_query_string(parameters: QueryDict) -> str:
    """Return the filters for links that keep them."""
    kept = parameters.copy()
    kept.pop("cursor", None)
    return kept.urlencode()


def list_actions(filters: dict[str, Any], cursor: int | None) -> tuple[Sequence[OperatorAction], int | None]:
    """Return a page of entries, newest first, and the cursor of the next page.

    An index finds the entries of a subject. The other filters examine the latest entries only.
    """
    rows: QuerySet[Any] = OperatorAction.across_tenants.order_by("-id")
    if cursor is not None:
        rows = rows.filter(id__lt=cursor)
    bottom = 0
    if filters and "subject" not in filters:
        bottom = next(iter(rows.values_list("id", flat=True)[MAX_EXAMINED : MAX_EXAMINED + 1]), 0)
    page = list(rows.filter(id__gt=bottom, **filters)[: PAGE_SIZE + 1])
    if len(page) > PAGE_SIZE:
        return page[:PAGE_SIZE], page[PAGE_SIZE - 1].id
    return page, bottom + 1 if bottom else None


def _build_row(row: OperatorAction, names: dict[uuid.UUID, str]) -> dict[str, Any]:
    return {
        "action": row,
        "tenant": names.get(row.tenant_id, "") if row.tenant_id else "",
        "known": row.tenant_id in names,
        "address": _link_to_subject(row),
        "is_id": parse_uuid(row.subject) is not None,
        "words": row.action.replace("-", " ").replace("_", " "),
        "detail": sorted(
            (name, _format_value(value)) for name, value in row.detail.items() if value not in (None, "")
        ),
    }


def _link_to_subject(row: OperatorAction) -> str:
    """Return the address of the page that shows the subject, or an empty string."""
    match row.action.partition("-")[0]:
        case "event" if row.subject.isascii() and row.subject.isdecimal():
            return reverse("console:event", args=[int(row.subject)])
        case "events":
            return reverse("console:events")
        case "endpoint" if row.tenant_id is not None and (endpoint_id := parse_uuid(row.subject)):
            if row.action == "endpoint-delete":
                return reverse("console:webhooks")
            return reverse("console:endpoint", args=[row.tenant_id, endpoint_id])
        case "key" if row.tenant_id is None:
            return reverse("console:operator-keys")
        case "key" | "tenant" | "namespace" if row.tenant_id is not None:
            return reverse("console:tenant", args=[row.tenant_id])
    call = parse_uuid(row.subject)
    return reverse("console:call", args=[row.tenant_id, call]) if call and row.tenant_id else ""


def _format_value(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{name} {_format_value(inner)}" for name, inner in value.items())
    return str(value)

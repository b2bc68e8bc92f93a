"""The page of a trace: the calls of one correlation id with their timers, attempts and events, on one time line."""

from __future__ import annotations

import uuid
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from eventservice.api.calls import parse_position
from eventservice.api.pagination import make_cursor
from eventservice.api.problems import FieldError, raise_for_errors
from eventservice.console.base.query import Query, drop_empty_params
from eventservice.console.base.views import ConsoleView
from eventservice.console.calls.presenters.http_exchange import get_hostnames
from eventservice.console.calls.presenters.trace import (
    StepKind,
    build_axis,
    build_trace_rows,
    compute_trace_refresh_seconds,
    format_span,
)
from eventservice.db.now import db_now
from eventservice.tenants.directory import get_tenant
from orchestration.queries.traces import TraceOverview, get_trace_overview, read_trace_page

PAGE_SIZE = 25
# The steps of more calls than this are only shown if the operator chooses so.
MAX_CALLS_WITH_STEPS = 3
NO_STEPS, ALL_STEPS = "calls", "all"
# What the page shows beside the calls, and how the choice is labeled.
SHOWN: dict[str, tuple[str, frozenset[StepKind]]] = {
    NO_STEPS: ("Calls only", frozenset()),
    ALL_STEPS: ("All steps", frozenset(StepKind)),
    "timers": ("Timers", frozenset({StepKind.TIMER})),
    "attempts": ("Attempts", frozenset({StepKind.ATTEMPT})),
    "events": ("Events", frozenset({StepKind.EVENT})),
}


class TracePage(ConsoleView):
    nav = "calls"
    template = "console/calls/trace.html"

    def get(self, request: HttpRequest, tenant_id: uuid.UUID, correlation_id: uuid.UUID) -> HttpResponse:
        errors: list[FieldError] = []
        query = Query(drop_empty_params(request.GET), errors)
        list_id = f"console trace {tenant_id} {correlation_id}"
        chosen, cursor = query.choice("show", list(SHOWN), ""), query.cursor(list_id)
        raise_for_errors(errors)
        tenant = get_tenant(tenant_id)
        overview = get_trace_overview(tenant_id, correlation_id)
        page = read_trace_page(tenant_id, correlation_id, PAGE_SIZE, parse_position(cursor))
        now = db_now()
        axis = build_axis(overview, page.calls, now)
        show = chosen or (ALL_STEPS if overview.call_count <= MAX_CALLS_WITH_STEPS else NO_STEPS)
        following = None if page.following is None else make_cursor(list_id, page.following)
        context = {
            "now": now,
            "tenant": tenant,
            "correlation_id": correlation_id,
            "overview": overview,
            "counts": _build_counts(tenant_id, correlation_id, overview),
            "axis": axis,
            "length": format_span(axis.end - axis.start),
            "rows": build_trace_rows(page.calls, axis, get_hostnames(), SHOWN[show][1]),
            "show": show,
            "shows_steps": show != NO_STEPS,
            "show_links": [(name, label, _build_query(show=name)) for name, (label, _) in SHOWN.items()],
            "is_first_page": cursor is None,
            "first_query": _build_query(show=chosen),
            "next_query": _build_query(show=chosen, cursor=following) if following else "",
            "refresh_seconds": compute_trace_refresh_seconds(overview, page.calls, now),
        }
        return self.render(context)


def _build_query(**parameters: str) -> str:
    return "?" + urlencode({name: value for name, value in parameters.items() if value})


def _build_counts(
    tenant_id: uuid.UUID, correlation_id: uuid.UUID, overview: TraceOverview
) -> list[dict[str, object]]:
    """Return the number of calls in all and of each status that has any, each with the address of their list."""
    parameters = {"tenant": str(tenant_id), "correlationId": str(correlation_id)}
    url = f"{reverse('console:calls')}?{urlencode(parameters)}"
    counts: list[dict[str, object]] = [{"name": "All calls", "count": overview.call_count, "url": url}]
    return counts + [
        {"name": status.value, "count": count, "url": f"{url}&{urlencode({'status': status.value})}"}
        for status, count in overview.by_status.items()
        if count
    ]

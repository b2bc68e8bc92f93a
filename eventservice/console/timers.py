"""Durable timers: the list, searched by id and due time, and the page of one timer with its calls."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from urllib.parse import urlencode

from django.conf import settings
from django.http import HttpRequest, HttpResponse, QueryDict
from django.urls import reverse

from eventservice.api.formats import parse_instant
from eventservice.api.pagination import make_cursor
from eventservice.api.problems import FieldError, InvalidRequest
from eventservice.api.schema.timers import MAX_TIMER_ID_LENGTH
from eventservice.console.base.query import Query, drop_empty_params
from eventservice.console.base.tenant_select import list_tenant_options
from eventservice.console.base.views import ConsoleView
from eventservice.console.calls.presenters.list_row import build_list_rows
from eventservice.db.now import db_now
from eventservice.tenants.directory import (
    find_tenant_names,
    get_tenant,
    is_any_namespace_in_store,
    list_namespaces,
)
from execution.redaction import mask_url
from orchestration import durable_timers
from orchestration.queries.call_lists import CallFilter, Order, Position, list_calls
from orchestration.queries.calls import CallSummary, list_timer_calls
from orchestration.queries.tenants_with_calls import list_tenants_with_calls
from orchestration.states import LIVE, TERMINAL
from timers.stores import port as stores

PAGE_SIZE = 50
# Each tenant's timers are a read of their own, so only so many tenants can be listed together.
MAX_TENANTS = 50
MAX_CALLS_OF_TIMER = 50
# Stands in the filter until it is applied to each listed tenant.
NO_TENANT = uuid.UUID(int=0)

SHOWN = {"pending": LIVE, "ended": TERMINAL, "all": LIVE | TERMINAL}
DUE_WITHIN = {
    "overdue": timedelta(),
    "1h": timedelta(hours=1),
    "24h": timedelta(hours=24),
    "7d": timedelta(days=7),
}
DUE_LABELS = {
    "overdue": "Overdue",
    "1h": "In the next hour",
    "24h": "In the next 24 hours",
    "7d": "In the next 7 days",
}


@dataclass(frozen=True, slots=True)
class TimerQuery:
    """The parameters of a list of timers."""

    tenant_id: uuid.UUID | None
    namespace: str | None
    prefix: str
    shown: str
    due: str
    due_from: datetime | None
    due_to: datetime | None
    # The timer store of the namespace, if it is to list its pending timers.
    store: str | None
    cursor: list[str] | None
    parameters: QueryDict  # without empty ones

    @property
    def after(self) -> Position | None:
        """The position after which the page of a list of calls begins."""
        if self.cursor is None:
            return None
        due_at, service_call_id = self.cursor
        return datetime.fromisoformat(due_at), uuid.UUID(service_call_id)

    @property
    def order(self) -> Order:
        """Pending timers are listed the first due first, those that have ended the last due first."""
        return Order("due_at", descending=self.shown != "pending")

    @property
    def is_filtered(self) -> bool:
        return any(name not in ("show", "cursor", "zone") for name in self.parameters)

    def build_filter(self, now: datetime) -> CallFilter:
        """Return the filter without its tenant."""
        end = self.due_to
        if self.due:
            limit = now + DUE_WITHIN[self.due]
            end = limit if end is None else min(end, limit)
        begin = now if self.due and self.due != "overdue" else None
        return CallFilter(
            NO_TENANT,
            statuses=frozenset(SHOWN[self.shown]),
            due_from=max(filter(None, [self.due_from, begin]), default=None),
            due_to=end,
            namespace=self.namespace,
            timers=True,
            timer_prefix=self.prefix,
        )

    def build_query(self, **changes: str) -> str:
        """Return the query string of the first page with some parameters changed."""
        parameters = self.parameters.copy()
        parameters.pop("cursor", None)
        for name, value in changes.items():
            parameters[name] = value
        return "?" + parameters.urlencode()

    def build_next_page_query(self, position: Sequence[object] | None) -> str:
        if position is None:
            return ""
        return self.build_query(cursor=make_cursor(_build_list_id(self.parameters), list(position)))


class TimersPage(ConsoleView):
    nav = "timers"
    template = "console/timers/timers.html"

    def get(self, request: HttpRequest) -> HttpResponse:
        errors: list[FieldError] = []
        query = _parse_query(request.GET, errors)
        now = db_now()
        tenants = {} if errors else _choose_tenants(query, now)
        is_too_wide = len(tenants) > MAX_TENANTS
        calls, following = _read_page(query, [] if is_too_wide else list(tenants), now)
        rows = build_list_rows(calls, now, tenants)
        namespaces = list_namespaces(query.tenant_id) if query.tenant_id else []
        context = {
            "now": now,
            "query": query,
            "errors": errors,
            "rows": [(row, _link_to_timer(row.call), mask_url(row.call.url)) for row in rows],
            "next": query.build_next_page_query(following),
            "is_too_wide": is_too_wide,
            "show_links": [(name, query.build_query(show=name)) for name in SHOWN],
            "due_options": DUE_LABELS,
            "tenants": list_tenant_options(query.tenant_id),
            "namespaces": namespaces,
            "stores": [spec.name for spec in settings.TIMER_STORES],
            "has_stores": any(namespace.store for namespace in namespaces)
            if query.tenant_id
            else is_any_namespace_in_store(),
        }
        return self.render(context, status=400 if errors else 200)


class TimerDetailsPage(ConsoleView):
    """One timer. Its id can be any string, so it is in the query and not in the path."""

    nav = "timers"
    template = "console/timers/timer.html"

    def get(self, request: HttpRequest) -> HttpResponse:
        tenant_id, namespace, timer_id = _parse_key(request.GET)
        tenant = get_tenant(tenant_id)
        timer = durable_timers.get_timer(tenant_id, namespace, timer_id)
        now = db_now()
        calls = list_timer_calls(tenant_id, namespace, timer_id, MAX_CALLS_OF_TIMER + 1)
        context = {
            "now": now,
            "tenant": tenant,
            "timer": timer,
            "is_pending": timer.status in LIVE,
            # A timer in a timer store becomes a call when it is about to be due.
            "has_call": any(call.service_call_id == timer.service_call_id for call in calls),
            "store": durable_timers.find_store(tenant_id, namespace),
            "execute_at": parse_instant(str(timer.request_spec["body"].get("executeAt", ""))),
            "payload": timer.request_spec["body"].get("payload"),
            "url": mask_url(timer.request_spec["url"]),
            "rows": build_list_rows(calls[:MAX_CALLS_OF_TIMER], now),
            "has_more_calls": len(calls) > MAX_CALLS_OF_TIMER,
            "max_calls": MAX_CALLS_OF_TIMER,
        }
        return self.render(context)


def _parse_key(given: QueryDict) -> tuple[uuid.UUID, str, str]:
    """Return the tenant, namespace and id of a timer. Raise InvalidRequest."""
    errors: list[FieldError] = []
    query = Query(given, errors)
    tenant_id = query.identifier("tenant")
    namespace, timer_id = query.text("namespace"), query.text("id", max_length=MAX_TIMER_ID_LENGTH)
    if not errors and tenant_id is not None and namespace is not None and timer_id is not None:
        return tenant_id, namespace, timer_id
    raise InvalidRequest(errors or [FieldError("/query", "must have tenant, namespace and id")])


def _parse_query(given: QueryDict, errors: list[FieldError]) -> TimerQuery:
    parameters = drop_empty_params(given)
    query = Query(parameters, errors)
    tenant_id = query.identifier("tenant")
    if tenant_id is not None and not find_tenant_names([tenant_id]):
        query.add_error("tenant", "does not exist")
    zone = query.zone()
    shown = query.choice("show", list(SHOWN), "pending")
    namespace = query.text("namespace") if tenant_id else None
    store = None
    if tenant_id and namespace and shown == "pending":
        store = durable_timers.find_store(tenant_id, namespace)
    for name in ("due", "from", "to") if store else ():
        if name in parameters:
            query.add_error(name, f"cannot be searched for in the timer store {store}")
    return TimerQuery(
        tenant_id=tenant_id,
        namespace=namespace,
        prefix=query.text("id", max_length=MAX_TIMER_ID_LENGTH) or "",
        shown=shown,
        due=query.choice("due", list(DUE_WITHIN), ""),
        due_from=query.moment("from", zone),
        due_to=query.moment("to", zone),
        store=store,
        cursor=query.cursor(_build_list_id(parameters)),
        parameters=parameters,
    )


def _build_list_id(parameters: QueryDict) -> str:
    """Return an id that is the same for all pages of a list, so that a cursor is valid for its own list only."""
    kept = parameters.copy()
    kept.pop("cursor", None)
    return f"console timers {kept.urlencode()}"


def _choose_tenants(query: TimerQuery, now: datetime) -> dict[uuid.UUID, str]:
    """Return the tenants whose timers are listed, by name; one more than allowed if they are too many."""
    if query.tenant_id is not None:
        return find_tenant_names([query.tenant_id])
    return list_tenants_with_calls(query.build_filter(now), MAX_TENANTS + 1)


def _read_page(
    query: TimerQuery, tenants: Sequence[uuid.UUID], now: datetime
) -> tuple[Sequence[CallSummary], Sequence[object] | None]:
    """Return the calls of a page, and the position after which the next one begins."""
    if query.store is None or not tenants:
        page = list_calls(_build_filters(query, tenants, now), query.order, PAGE_SIZE, after=query.after)
        return page.calls, page.following
    namespace = query.namespace or ""
    if query.prefix:
        return durable_timers.list_stored_timer(tenants[0], namespace, query.prefix), None
    after = None if query.cursor is None else stores.Position(query.cursor[0])
    stored = durable_timers.list_stored_timers(tenants[0], namespace, after, PAGE_SIZE)
    return stored.timers, None if stored.after is None else [stored.after]


def _build_filters(query: TimerQuery, tenants: Iterable[uuid.UUID], now: datetime) -> list[CallFilter]:
    wanted = query.build_filter(now)
    return [replace(wanted, tenant_id=tenant_id) for tenant_id in tenants]


def _link_to_timer(call: CallSummary) -> str:
    key = {"tenant": call.tenant_id, "namespace": call.namespace, "id": call.external_id}
    return f"{reverse('console:timer')}?{urlencode(key)}"

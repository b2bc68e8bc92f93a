"""The list of calls: filters, counts, pages, and the updates of what is on the page."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone

from eventservice.api.formats import format_instant, parse_instant
from eventservice.api.problems import FieldError, InvalidRequest
from eventservice.api.schema.queries import MAX_LIMIT
from eventservice.console.base.time_zone import format_instant as format_instant_in_zone
from eventservice.console.base.views import ConsoleView, redirect_see_other
from eventservice.console.calls.export import MAX_EXPORTED_CALLS
from eventservice.console.calls.list_query import (
    DATE_FIELDS,
    MAX_WALKED,
    IdNotFound,
    ListQuery,
    PageCursor,
    parse_list_query,
)
from eventservice.console.calls.presenters.call_state import RETRYING
from eventservice.console.calls.presenters.list_row import build_list_rows, parse_call_keys
from eventservice.console.calls.suggestions import MAX_SUGGESTIONS
from eventservice.db.bounded_count import MAX_COUNTED, format_capped
from eventservice.db.now import db_now
from eventservice.operators.roles import Role
from orchestration.queries.call_lists import CallListPage
from orchestration.queries.calls import list_summaries
from orchestration.queries.counts import CallCounts, count_by_tenant, count_calls, count_submitted_since
from orchestration.queries.suggestions import COLUMNS, list_suggestions
from orchestration.states import Status

PAGE_SIZES = (10, 25, 50, 100, 200)
MAX_NEW_COUNTED = 100
# URLs hold times to the millisecond, so a call submitted within the same millisecond is on the page already.
CLOCK_RESOLUTION = timedelta(milliseconds=1)
SORT_COLUMNS = {"submitted": "submittedAt", "execution": "dueAt"}
FILTER_LABELS = {
    "tenant": "Tenant", "id": "ID", "name": "Name", "host": "Host", "tag": "Tag", "by": "Time", "from": "From",
    "to": "To", "namespace": "Namespace", "correlationId": "Correlation ID", "replayOf": "Replays of",
}  # fmt: skip
# Filters with a field of their own, which shows their errors.
FORM_FIELDS = frozenset({"tenant", "id", "name", "host", "tag", "by", "from", "to"})
REMOVABLE_FILTERS = [name for name in FILTER_LABELS if name != "by"]


class CallList(ConsoleView):
    nav = "calls"
    template = "console/calls/list.html"

    def get(self, request: HttpRequest) -> HttpResponse:
        query = parse_list_query(request.GET)
        if query.errors:
            return self.render(build_frame_context(query), status=400)
        if query.lookup_id:
            try:
                return redirect_see_other(query.resolve_id(query.lookup_id))
            except IdNotFound as error:
                return self.render(build_frame_context(query, id_error=str(error)), status=404)
        if query.has_too_many_tenants or not query.tenants:
            return self.render({**build_frame_context(query), "offered": _build_tenant_offers(query)})
        return self._render_calls(query)

    def _render_calls(self, query: ListQuery) -> HttpResponse:
        now = db_now()
        page = query.fetch_page()
        counts = count_calls(query.filters)
        context = {
            **build_frame_context(query),
            **build_counts_context(query, counts, since=now + CLOCK_RESOLUTION),
            **_build_pager_context(query, page, counts),
            "rows": build_list_rows(page.calls, now, query.listed),
            "did_you_mean": [] if page.calls else _suggest_filters(query),
            "now": now,
        }
        return self.render(context)


class CallListUpdates(ConsoleView):
    """The current counts, and the current state of the rows on the page.

    This changes nothing, so viewers may post. It is a POST because the IDs of the rows do not fit in a URL.
    """

    nav = "calls"
    write_role = Role.VIEWER
    template = "console/calls/_list_updates.html"

    def post(self, request: HttpRequest) -> HttpResponse:
        parameters = request.GET.copy()
        since = parse_instant("".join(parameters.pop("since", [])))
        if since is None:
            raise InvalidRequest([FieldError("/query/since", "must be a time")])
        query = parse_list_query(parameters)
        query.raise_if_invalid()
        now = db_now()
        keys = parse_call_keys(request.POST.getlist("shown")[:MAX_LIMIT])
        counts = count_calls(query.filters)
        context = {
            **build_counts_context(query, counts, since=since),
            "total": format_total(counts.total, exact=counts.exact),
            "new": count_submitted_since(query.filters, since, MAX_NEW_COUNTED + 1),
            "rows": build_list_rows(list_summaries(keys), now),
            "now": now,
        }
        return self.render(context)


# --- template contexts --------------------------------------------------------------------------------------------


def build_frame_context(query: ListQuery, *, id_error: str = "") -> dict[str, object]:
    """Return the context of everything around the calls, which is shown even if the calls cannot be."""
    return {
        "list_query": query,
        "errors": _build_errors_context(query, id_error),
        "active_filters": _list_active_filters(query),
        "fields": _build_fields_context(query),
        "hidden_fields": _list_hidden_fields(query, without={*FORM_FIELDS, "zone"}),
        "hidden_fields_of_limit": _list_hidden_fields(query, without={"limit"}),
        "page_sizes": sorted({*PAGE_SIZES, query.limit}),
        "sorts": {column: _build_sort_header(query, name) for column, name in SORT_COLUMNS.items()},
        "clear_url": query.url(
            **{name: None for name in query.parameters if name not in ("sort", "limit", "tenant")}
        ),
        "first_page_url": query.url(),
        "query_string": query.query_string(),
        "all_tenants": query.tenant is None and len(query.tenants) > 1,
        "max_exported": f"{MAX_EXPORTED_CALLS:,}",
    }


def _build_fields_context(query: ListQuery) -> dict[str, object]:
    texts = {name: query.parameters.get(name, "") for name in ("tenant", "id", "name", "host")}
    dates = {
        # An invalid time is shown as it was typed, for correction.
        name: query.parameters.get(name, "") if name in query.errors else _format_datetime_local(moment)
        for name, moment in (
            ("from", query.begin),
            ("to", query.end),
        )
    }
    by = query.parameters.get("by", DATE_FIELDS[0])
    return {**texts, **dates, "by": by, "tags": query.parameters.getlist("tag")}


def _format_datetime_local(moment: datetime | None) -> str:
    """Return the value of an <input type="datetime-local"> in the active zone."""
    if moment is None:
        return ""
    at = timezone.make_naive(moment)
    return at.isoformat(timespec="seconds" if at.second or at.microsecond else "minutes")


def _build_errors_context(query: ListQuery, id_error: str) -> dict[str, object]:
    """Separate the errors that have a field from the others, which are shown above the list."""
    texts = {name: f"{FILTER_LABELS.get(name, name)} {rule}." for name, rule in query.errors.items()}
    if id_error:
        texts["id"] = id_error
    return {
        "by_field": {name: text for name, text in texts.items() if name in FORM_FIELDS},
        "other": [text for name, text in texts.items() if name not in {*FORM_FIELDS, "cursor"}],
        "cursor": "cursor" in texts,
    }


def _list_active_filters(query: ListQuery) -> list[dict[str, str]]:
    """Return each active filter with the URL of the list without it."""
    active = []
    for name in REMOVABLE_FILTERS:
        values = query.parameters.getlist(name)
        for value in values:
            remove_url = query.url(**{name: [other for other in values if other != value]})
            text = _describe_filter(query, name, value)
            active.append({"label": FILTER_LABELS[name], "value": text, "remove_url": remove_url})
    return active


def _describe_filter(query: ListQuery, name: str, value: str) -> str:
    if name in query.errors:
        return value
    match name:
        case "host" if query.filter.port is not None:
            return value.strip('"')
        case "name" | "host" if not value.startswith('"'):
            return f"{value}…"
        case "tenant" if query.tenant is not None:
            return query.tenants.get(query.tenant, value)
        case "from":
            return format_instant_in_zone(query.begin, milliseconds=False)
        case "to":
            return format_instant_in_zone(query.end, milliseconds=False)
    return value


def _list_hidden_fields(query: ListQuery, *, without: Collection[str]) -> list[tuple[str, str]]:
    return [
        (name, value)
        for name, values in query.parameters.lists()
        if name not in {*without, "cursor"}
        for value in values
    ]


def _build_sort_header(query: ListQuery, name: str) -> dict[str, str]:
    """Return the state of a column header, and the URL that sorts by it or reverses its order."""
    is_current = query.sort.removeprefix("-") == name
    is_descending = query.sort.startswith("-")
    next_sort = name if is_current and is_descending else f"-{name}"
    state = ("descending" if is_descending else "ascending") if is_current else "none"
    return {"url": query.url(sort=next_sort), "state": state}


def _suggest_filters(query: ListQuery) -> list[dict[str, str]]:
    """Return similar values of the filter by name, host or tag, for a list that is empty because of it."""
    for column in COLUMNS:
        values = query.parameters.getlist(column)
        if not values:
            continue
        *others, text = values
        found = list_suggestions(list(query.listed), column, text.strip('"'), MAX_SUGGESTIONS)
        return [
            {"value": value, "url": query.url(**{column: [*others, value]})}
            for value in found
            if value != text
        ]
    return []


def _build_tenant_offers(query: ListQuery) -> list[dict[str, object]]:
    """Return the first tenants of too many, each with its own list."""
    filters = query.filters[:-1]  # the last one only tells that there are too many
    return [
        {
            "name": query.listed[one.tenant_id],
            "count": count,
            "url": query.url(tenant=str(one.tenant_id)),
        }
        for one, count in zip(filters, count_by_tenant(filters), strict=True)
    ]


def build_counts_context(query: ListQuery, counts: CallCounts, *, since: datetime) -> dict[str, object]:
    """Return the context of the status chips. `since` is when the page was loaded: later calls count as new."""
    chosen, retrying = query.filter.statuses, query.filter.retrying
    total = sum(counts.by_status.values())
    all_url = query.url(status=None, retrying=None)
    chips = [{"name": "All", "count": total, "is_current": not chosen and not retrying, "url": all_url}]
    for status in Status.values:
        # A click on the only chosen status removes it.
        url = query.url(status=None if chosen == {status} else status, retrying=None)
        count = counts.by_status.get(status, 0)
        chips.append({"name": status, "count": count, "is_current": status in chosen, "url": url})
        if status == Status.SCHEDULED:
            url = query.url(status=None, retrying=None if retrying else "1")
            chips.append({"name": RETRYING, "count": counts.retrying, "is_current": retrying, "url": url})
    favorites = "favorites" in query.parameters
    return {
        "list_query": query,
        "chips": chips,
        "counts_are_filtered": counts.filtered,
        "favorites": favorites,
        "favorites_url": query.url(favorites=None if favorites else "1"),
        "updates_url": f"{reverse('console:calls-look')}?{query.query_string(since=format_instant(since))}",
        "first_page_url": query.url(),
        "max_new": MAX_NEW_COUNTED,
    }


def format_total(total: int, *, exact: bool) -> str:
    return format_capped(total) if exact or total > MAX_COUNTED else f"{total:,}+"


def _build_pager_context(query: ListQuery, page: CallListPage, counts: CallCounts) -> Mapping[str, object]:
    shown = len(page.calls)
    offset = _compute_offset(query.cursor, shown, is_first=page.preceding is None)
    if page.following is None:
        total = f"{offset + shown:,}"
    else:
        total = format_total(max(counts.total, offset + shown + 1), exact=counts.exact)
    previous_url = next_url = None
    if page.preceding is not None:
        backward = PageCursor(backward=True, offset=offset, position=page.preceding)
        previous_url = query.page_url(backward) if offset else query.url()
    if page.following is not None:
        next_url = query.page_url(PageCursor(backward=False, offset=offset + shown, position=page.following))
    return {
        "first": f"{offset + 1:,}",
        "last": f"{offset + shown:,}",
        "total": total,
        "previous_url": previous_url,
        "next_url": next_url,
        "is_beyond_end": query.cursor is not None and not shown and not page.is_partial,
        "is_partial": page.is_partial,
        "max_walked": f"{MAX_WALKED:,}",
        "searches_newest": query.sort.startswith("-"),
    }


def _compute_offset(cursor: PageCursor | None, shown: int, *, is_first: bool) -> int:
    """Return how many calls come before the page, without those that came in since the first page was opened."""
    if cursor is None or is_first:
        return 0
    return max(0, cursor.offset - shown) if cursor.backward else cursor.offset

"""Status: the list of all calls."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from django.http import HttpRequest, HttpResponse, QueryDict
from django.urls import reverse

from eventservice.api.formats import format_instant, parse_instant
from eventservice.api.pagination import MOST_LISTED
from eventservice.api.problems import FieldError, InvalidRequest
from eventservice.console.base.views import ConsoleView, redirect_see_other
from eventservice.console.calls.export import MOST_EXPORTED
from eventservice.console.calls.list_query import (
    BY,
    MOST_TENANTS,
    Asked,
    NotFoundByIt,
    Turn,
    in_field,
    place_of,
    read_asked,
)
from eventservice.console.calls.presenters.list_row import read_keys, rows_of
from eventservice.db.bounded_count import MAX_COUNTED, format_capped
from eventservice.db.now import db_now
from eventservice.operators.roles import Role
from orchestration.queries import call_lists
from orchestration.queries import calls as call_queries
from orchestration.queries.counts import CallCounts, count_by_tenant, count_calls, count_submitted_since
from orchestration.states import Status

LIMITS = (10, 25, 50, 100, 200)
MOST_NEW = 100
# An address holds times to the millisecond; what came in within this one is on the page.
JUST_AFTER = timedelta(milliseconds=1)
SORTED_BY = {"submitted": "submittedAt", "execution": "dueAt"}
# Those that the form has a field for: their faults stand there.
FIELDS = frozenset({"tenant", "id", "name", "host", "tag", "from", "to", "by"})
CALLED = {
    "tenant": "Tenant", "id": "Id", "name": "Name", "host": "Host", "tag": "Tag", "from": "From", "to": "To",
    "namespace": "Namespace", "correlationId": "Correlation", "replayOf": "Replays of",
}  # fmt: skip


class Calls(ConsoleView):
    nav = "calls"
    template = "console/calls/list.html"

    def get(self, request: HttpRequest) -> HttpResponse:
        asked = read_asked(request.GET)
        if asked.faults:
            return self.render(frame_of(asked), status=400)
        if asked.sought:
            return self._find(asked.sought, asked)
        if asked.too_many_tenants or not asked.tenants:
            return self.render({**frame_of(asked), "offered": _offered(asked)})
        now = db_now()
        page = asked.read()
        counted = count_calls(asked.wanted)
        context = {
            **frame_of(asked),
            **counts_of(asked, counted, now + JUST_AFTER),
            **_pager_of(asked, page, counted),
            "rows": rows_of(page.calls, now, asked.listed),
            "now": now,
        }
        return self.render(context)

    def _find(self, sought: uuid.UUID, asked: Asked) -> HttpResponse:
        try:
            return redirect_see_other(place_of(sought, asked))
        except NotFoundByIt as why:
            return self.render(frame_of(replace(asked, faults={"id": str(why)})), status=404)


class Look(ConsoleView):
    """How the list that is on show stands by now. It changes nothing, so whoever may look may ask; and it is a POST
    for the ids on show, which no address would hold.
    """

    nav = "calls"
    write_role = Role.VIEWER
    template = "console/calls/_list_updates.html"

    def post(self, request: HttpRequest) -> HttpResponse:
        asked, since = _read_look(request.GET)
        now = db_now()
        keys = read_keys(request.POST.getlist("shown")[:MOST_LISTED])
        calls = call_queries.list_summaries(keys)
        context = {
            **counts_of(asked, count_calls(asked.wanted), since),
            "new": count_submitted_since(asked.wanted, since, MOST_NEW + 1),
            "rows": rows_of(calls, now),
            "now": now,
        }
        return self.render(context)


def _read_look(given: QueryDict) -> tuple[Asked, datetime]:
    parameters = given.copy()
    since = parse_instant("".join(parameters.pop("since", [])))
    if since is None:
        raise InvalidRequest([FieldError("/query/since", "must be a time")])
    return read_asked(parameters).checked(), since


def _offered(asked: Asked) -> list[dict[str, Any]]:
    """The first of too many tenants, each with its own list."""
    wanted = asked.wanted[:MOST_TENANTS]
    return [
        {
            "name": asked.listed[one.tenant_id],
            "count": count,
            "address": asked.address(tenant=str(one.tenant_id)),
        }
        for one, count in zip(wanted, count_by_tenant(wanted), strict=True)
    ]


# --- what the templates show ------------------------------------------------------------------------------------


def frame_of(asked: Asked) -> dict[str, Any]:
    """The form, and all that is there without any call."""
    return {
        "asked": asked,
        "faults": _faults_of(asked),
        "active": list(_active(asked)),
        "fields": _fields_of(asked),
        "kept": _hidden(asked, but=FIELDS),
        "kept_beside_limit": _hidden(asked, but={"limit"}),
        "limits": sorted({*LIMITS, asked.limit}),
        "sorts": {column: _sort_of(asked, name) for column, name in SORTED_BY.items()},
        "clear": asked.address(
            **{name: None for name in asked.parameters if name not in ("sort", "limit", "tenant")}
        ),
        "first_page": asked.address(),
        "query": asked.query(),
        "all_tenants": asked.tenant is None and len(asked.tenants) > 1,
        "most_exported": f"{MOST_EXPORTED:,}",
    }


def _fields_of(asked: Asked) -> dict[str, Any]:
    given = {name: asked.parameters.get(name, "") for name in ("tenant", "id", "name", "host")}
    by = asked.parameters.get("by", BY[0])
    dates = {
        # What is no time stays as it was written, for the mending.
        name: asked.parameters.get(name, "") if name in asked.faults else in_field(moment)
        for name, moment in (
            ("from", asked.filter.due_from or asked.filter.submitted_from),
            ("to", asked.filter.due_to or asked.filter.submitted_to),
        )
    }
    return {**given, **dates, "by": by, "tags": asked.parameters.getlist("tag")}


def _faults_of(asked: Asked) -> dict[str, Any]:
    """Those of a field stand there; the others stand above all."""
    above = asked.faults.keys() - FIELDS - {"cursor"}
    return {
        "here": {name: detail for name, detail in asked.faults.items() if name in FIELDS},
        "above": {name: detail for name, detail in asked.faults.items() if name in above},
        "cursor": "cursor" in asked.faults,
    }


def _active(asked: Asked) -> list[dict[str, str]]:
    """Each filter, with the list that it would be without it."""
    found = []
    for name, called in CALLED.items():
        values = asked.parameters.getlist(name)
        for value in values:
            shown = asked.tenants.get(asked.tenant, value) if name == "tenant" and asked.tenant else value
            without = asked.address(**{name: [other for other in values if other != value]})
            found.append({"name": called, "value": shown, "without": without})
    return found


def _hidden(asked: Asked, *, but: Collection[str]) -> list[tuple[str, str]]:
    return [
        (name, value)
        for name, values in asked.parameters.lists()
        if name not in {*but, "cursor"}
        for value in values
    ]


def _sort_of(asked: Asked, name: str) -> dict[str, str]:
    """The header of a column that sorts: the other way round, where it sorts already."""
    is_now = asked.sort.removeprefix("-") == name
    descending = asked.sort.startswith("-")
    turned = name if is_now and descending else f"-{name}"
    state = ("descending" if descending else "ascending") if is_now else "none"
    return {"address": asked.address(sort=turned), "state": state}


def counts_of(asked: Asked, counted: CallCounts, since: datetime) -> dict[str, Any]:
    chosen = asked.filter.statuses
    every = sum(counted.by_status.values())
    chips = [{"name": "All", "count": every, "current": not chosen, "address": asked.address(status=None)}]
    for status in Status.values:
        is_chosen = status in chosen
        # Chosen again, the only one is given up.
        address = asked.address(status=None if chosen == {status} else status)
        count = counted.by_status.get(status, 0)
        chips.append({"name": status, "count": count, "current": is_chosen, "address": address})
    favorites = "favorites" in asked.parameters
    return {
        "asked": asked,
        "chips": chips,
        "narrowed": counted.filtered,
        "favorites": favorites,
        "favorites_address": asked.address(favorites=None if favorites else "1"),
        "look": f"{reverse('console:calls-look')}?{asked.query(since=format_instant(since))}",
        "first_page": asked.address(),
        "most_new": MOST_NEW,
    }


def total_text(total: int, *, exact: bool) -> str:
    return format_capped(total) if exact or total > MAX_COUNTED else f"{total:,}+"


def _pager_of(asked: Asked, page: call_lists.CallListPage, counted: CallCounts) -> Mapping[str, Any]:
    shown = len(page.calls)
    offset = _offset_of(asked.turn, shown, first=page.preceding is None)
    if page.following is None:
        total = f"{offset + shown:,}"
    else:
        total = total_text(max(counted.total, offset + shown + 1), exact=counted.exact)
    following, preceding = page.following, page.preceding
    back = Turn(True, offset, preceding) if preceding is not None else None
    on = Turn(False, offset + shown, following) if following is not None else None
    return {
        "first": f"{offset + 1:,}",
        "last": f"{offset + shown:,}",
        "total": total,
        "previous": None if back is None else asked.turned(back) if offset else asked.address(),
        "next": None if on is None else asked.turned(on),
        "beyond": asked.turn is not None and not shown,
    }


def _offset_of(turn: Turn | None, shown: int, *, first: bool) -> int:
    """What has come in before the first page since it was opened is not counted: it is shown as new."""
    if turn is None or first:
        return 0
    return max(0, turn.offset - shown) if turn.back else turn.offset

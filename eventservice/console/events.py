"""Events: those that wait to be published, those that are parked, and the page of one event."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from eventservice.api.problems import FieldError
from eventservice.console.base.confirm import ConfirmView
from eventservice.console.base.query import Query, drop_empty_params
from eventservice.console.base.tenant_select import list_tenant_options
from eventservice.console.base.views import ConsoleView
from eventservice.db.bounded_count import MAX_COUNTED
from eventservice.db.now import db_now
from eventservice.kernel.errors import Conflict, NotFound
from eventservice.operators.health import check_outbox_lag, check_role, select_problems
from eventservice.tenants.directory import find_tenant_names, list_tenant_ids
from execution.redaction import mask_url
from orchestration.events import EventType
from outbox.models import EventState, OutboxEvent
from outbox.parking import park, skip, unpark
from outbox.queries import (
    EventDelivery,
    EventFilter,
    EventPage,
    StateFilter,
    count_newer_events,
    count_unpublished_by_aggregate,
    find_cause,
    find_event,
    list_aggregate_events,
    list_event_deliveries,
    list_events,
)
from outbox.status import count_waiting_by_type, get_status
from timers.models import NodeRole
from timers.operator_views import list_nodes

PAGE_SIZE = 25
MAX_EVENT_ID = 2**63 - 1
MAX_PARKED_SHOWN = 5
MAX_KINDS_SHOWN = 20
MAX_EVENTS_OF_CALL = 100
PARKED_BY_OPERATOR = "Parked by an operator."


class EventsPage(ConsoleView):
    nav = "events"
    template = "console/events/events.html"

    def get(self, request: HttpRequest) -> HttpResponse:
        errors: list[FieldError] = []
        filters, cursor, seen = _read_filters(request, errors)
        page = EventPage([], None) if errors else list_events(filters, cursor, PAGE_SIZE)
        parked = list_events(EventFilter(StateFilter.PARKED), None, MAX_PARKED_SHOWN).events
        now = db_now()
        found = get_status(MAX_COUNTED)
        lag = check_outbox_lag(found)
        kinds = count_waiting_by_type(MAX_COUNTED) if found.unpublished else []
        names = find_tenant_names(
            [*(e.tenant_id for e in [*page.events, *parked]), *(k.tenant_id for k in kinds)]
        )
        query = _build_query_string(request)
        top = seen or (page.events[0].id if page.events else 0)
        follows = filters.state is StateFilter.ALL and not filters.needs_scan and not filters.aggregate_id
        context = {
            "now": now,
            "status": found,
            "lag_severity": lag.severity,
            "problems": select_problems([check_role(list_nodes(), NodeRole.DISPATCHER, now), lag]),
            "kinds": [(kind, names.get(kind.tenant_id, "")) for kind in kinds[:MAX_KINDS_SHOWN]],
            "sampled": found.unpublished > MAX_COUNTED,
            "parked": _build_rows(parked, names, count_unpublished_by_aggregate(parked)),
            "rows": _build_rows(page.events, names, {}),
            "page": page,
            "filters": filters,
            "cursor": cursor,
            "top": top,
            "newer": count_newer_events(top, 1000) if follows and cursor is None and top else 0,
            "errors": errors,
            "tenants": list_tenant_options(filters.tenant_id),
            "types": list(EventType),
            "query": query,
            "live_query": _build_live_query(query, filters, cursor, top),
            "lists": [(str(listed), LISTS[listed]) for listed in StateFilter],
        }
        return self.render(context, status=400 if errors else 200)


LISTS = {
    StateFilter.ALL: "All",
    StateFilter.WAITING: "Waiting",
    StateFilter.PARKED: "Parked",
    StateFilter.HELD: "Held",
}


def _read_filters(request: HttpRequest, errors: list[FieldError]) -> tuple[EventFilter, int | None, int]:
    query = Query(drop_empty_params(request.GET), errors)
    aggregate_id = query.identifier("call")
    filters = EventFilter(
        StateFilter(query.choice("show", list(StateFilter), StateFilter.ALL)),
        query.identifier("tenant"),
        query.text("type", max_length=64),
        aggregate_id,
        list_tenant_ids() if aggregate_id else (),
    )
    return filters, _parse_event_key(query, "cursor") or None, _parse_event_key(query, "seen")


def _parse_event_key(query: Query, name: str) -> int:
    text = query.text(name) or "0"
    if text.isascii() and text.isdecimal() and len(text) < len(str(MAX_EVENT_ID)):
        return int(text)
    query.add_error(name, "must be the number of an event")
    return 0


def _build_query_string(request: HttpRequest) -> str:
    """Return the current filters as a query string, for links that keep them."""
    kept = drop_empty_params(request.GET)
    for name in ("cursor", "seen", "show"):
        kept.pop(name, None)
    return kept.urlencode()


def _build_live_query(query: str, filters: EventFilter, cursor: int | None, top: int) -> str:
    """Return the query string with which the status of the page refreshes itself."""
    live = {"show": str(filters.state), "cursor": str(cursor or ""), "seen": str(top or "")}
    return "&".join(filter(None, [query, urlencode(live)]))


def _build_rows(
    events: Any, names: dict[uuid.UUID, str], unpublished: dict[Any, int]
) -> list[dict[str, Any]]:
    return [
        {
            "event": event,
            "state": str(event.state),
            "tenant": names.get(event.tenant_id, ""),
            "behind": max(0, unpublished.get((event.tenant_id, event.aggregate_id), 1) - 1),
        }
        for event in events
    ]


# --- one event ------------------------------------------------------------------------------------------------


class EventDetailsPage(ConsoleView):
    nav = "events"
    template = "console/events/event.html"

    def get(self, request: HttpRequest, key: int) -> HttpResponse:
        event = _get_event(key)
        around = list_aggregate_events(event.tenant_id, event.aggregate_id, 0, MAX_EVENTS_OF_CALL)
        # One read decides about all states on the page.
        event = next((other for other in around if other.id == key), event)
        deliveries = list_event_deliveries(event)
        names = find_tenant_names([event.tenant_id])
        context = {
            "now": db_now(),
            "event": event,
            "state": str(event.state),
            "tenant": names.get(event.tenant_id, ""),
            "cause": find_cause(event),
            "around": [(other, str(other.state)) for other in around],
            "parked": next((e for e in around if str(e.state) == "Parked"), None),
            "behind": sum(e.published_at is None for e in around if e.id != event.id),
            "deliveries": [(delivery, mask_url(url)) for delivery, url in deliveries],
            "refresh_seconds": _compute_refresh_seconds(event, deliveries),
        }
        return self.render(context)


def _compute_refresh_seconds(event: OutboxEvent, deliveries: Sequence[EventDelivery]) -> int:
    """Return how long the page may wait until it refreshes, or 0 if nothing on it changes without an operator."""
    match event.state:
        case EventState.WAITING | EventState.RETRYING:
            return 1
        case EventState.HELD | EventState.PARKED:
            return 5
    return 5 if any(delivery.finished_at is None for delivery, _ in deliveries) else 0


def _get_event(key: int) -> OutboxEvent:
    event = find_event(key) if key <= MAX_EVENT_ID else None
    if event is None:
        raise NotFound("event")
    return event


class EventAction(ConfirmView):
    """A decision about an event that is not published yet."""

    nav = "events"

    def decide(
        self, action: str, key: int, command: Callable[[], bool], *, reason: str, message: str
    ) -> HttpResponse:
        """Run a command on an event. `reason` says why the command may have found nothing to do."""

        def change() -> None:
            if not command():
                raise Conflict("wrong_state", f"Nothing was changed. {reason}")

        event = _get_event(key)
        self.run_audited(action, change, tenant_id=event.tenant_id, subject=key, type=event.event_type)
        self.report_success(message)
        return self.redirect_back(reverse("console:event", args=[key]))


class RetryEvent(EventAction):
    def post(self, request: HttpRequest, key: int) -> HttpResponse:
        return self.decide(
            "event-retry",
            key,
            lambda: unpark(key),
            reason="The event is no longer parked.",
            message="The event will be published again; the events held behind it follow.",
        )


class SkipEvent(EventAction):
    WORD = "skip"

    def get(self, request: HttpRequest, key: int) -> HttpResponse:
        event = _get_event(key)
        return self.render_confirmation(
            f"Skip {event.event_type}?",
            "Skip event",
            back_to=reverse("console:event", args=[key]),
            text="The event will never be published, not even by a replay. "
            f"Publishing continues with the events held behind it: {_format_events_behind(event)}.",
            word=self.WORD,
            danger=True,
        )

    def post(self, request: HttpRequest, key: int) -> HttpResponse:
        self.require_typed_word(self.WORD)
        return self.decide(
            "event-skip",
            key,
            lambda: skip(key),
            reason="The event is no longer parked.",
            message="Event skipped. The events held behind it will be published.",
        )


class ParkEvent(EventAction):
    def get(self, request: HttpRequest, key: int) -> HttpResponse:
        event = _get_event(key)
        return self.render_confirmation(
            f"Park {event.event_type}?",
            "Park event",
            back_to=reverse("console:event", args=[key]),
            text="The event is not published until somebody retries it. All later events of the same call wait too: "
            f"{_format_events_behind(event)} now, and any that follow. A publisher that is already sending it may still finish.",
        )

    def post(self, request: HttpRequest, key: int) -> HttpResponse:
        return self.decide(
            "event-park",
            key,
            lambda: park(key, PARKED_BY_OPERATOR),
            reason="The event, or another one of its call, is already published or parked.",
            message="Event parked. Later events of its call wait.",
        )


def _format_events_behind(event: OutboxEvent) -> str:
    count = count_unpublished_by_aggregate([event]).get((event.tenant_id, event.aggregate_id), 1) - 1
    return {0: "no event", 1: "1 event"}.get(count, f"{count:,} events")

"""Lists of events for operators. However many events there are, a page reads a bounded number of them.

No index serves the events of a tenant or of a type, because none is worth what it would cost every event. A list with
such a filter scans a limited number of events and reports where it stopped; the next page goes on from there.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from django.db.models import Case, Count, Q, QuerySet, When

from outbox.envelope import Aggregate
from outbox.models import HELD, PARKED, WAITING, OutboxEvent, WebhookDelivery, WebhookEndpoint
from outbox.writer import PARTITIONS

# How many events a page scans when it has to look for those that it shows.
MAX_SCANNED = 10_000


class StateFilter(StrEnum):
    """The states that a list contains."""

    ALL = "all"
    WAITING = "waiting"  # for the dispatcher
    PARKED = "parked"  # rejected by a publisher, or parked by an operator
    HELD = "held"  # behind a parked one


@dataclass(frozen=True, slots=True)
class EventFilter:
    state: StateFilter = StateFilter.ALL
    tenant_id: uuid.UUID | None = None
    event_type: str | None = None
    aggregate_id: uuid.UUID | None = None
    # The tenants in which an aggregate is looked up: the index by aggregate begins with the tenant.
    aggregate_tenant_ids: Sequence[uuid.UUID] = ()

    @property
    def needs_scan(self) -> bool:
        """Return whether more events have to be read than are shown."""
        return self.tenant_id is not None or self.event_type is not None

    def build_match_flag(self) -> Case:
        """Build an expression that is 1 for events of the wanted tenant and type.

        It is selected for each event that is scanned, and not part of the WHERE clause: there a database may prefer an
        index by which it reads far more.
        """
        given = {"tenant_id": self.tenant_id, "event_type": self.event_type}
        wanted = Q(**{column: value for column, value in given.items() if value is not None})
        return Case(When(wanted, then=1), default=0) if wanted else Case(default=1)


@dataclass(frozen=True, slots=True)
class EventPage:
    """A page of events. `cursor` is where the next one begins; `partial` if the scan limit has cut the page short."""

    events: Sequence[OutboxEvent]
    cursor: int | None
    partial: bool = False


class EventDelivery(NamedTuple):
    delivery: WebhookDelivery
    url: str  # of the endpoint


class _ScannedKey(NamedTuple):
    id: int
    matches: int


def list_events(wanted: EventFilter, cursor: int | None, limit: int) -> EventPage:
    """Return a page of events: the newest first if all are listed, otherwise in the order of publishing."""
    if wanted.aggregate_id is not None or wanted.state in (StateFilter.PARKED, StateFilter.HELD):
        return _list_in_memory(wanted, cursor, limit)
    if wanted.state is StateFilter.ALL:
        return _list_newest_first(wanted, cursor, limit)
    return _list_waiting(wanted, cursor or 0, limit)


def list_aggregate_events(
    tenant_id: uuid.UUID, aggregate_id: uuid.UUID, after: int, limit: int
) -> list[OutboxEvent]:
    """Return the events of an aggregate that follow its event number `after`, in order, as far as they are kept."""
    events = OutboxEvent.objects.for_tenant(tenant_id).filter(
        aggregate_id=aggregate_id, aggregate_seq__gt=after
    )
    return list(events.order_by("aggregate_seq")[:limit])


def list_last_events(
    tenant_id: uuid.UUID, last_seqs: Mapping[uuid.UUID, int], limit: int
) -> dict[uuid.UUID, list[OutboxEvent]]:
    """Return those of the last `limit` events of each aggregate that are kept, in order and without payloads.

    `last_seqs` has the number of the last event of each aggregate.
    """
    events = OutboxEvent.objects.for_tenant(tenant_id).defer("event_payload")
    few = [aggregate_id for aggregate_id, last in last_seqs.items() if last <= limit]
    found = list(events.filter(aggregate_id__in=few))
    for aggregate_id, last in last_seqs.items():
        if last > limit:
            later = events.filter(aggregate_id=aggregate_id, aggregate_seq__gt=last - limit)
            # In the order of the index by number: another index finds the aggregate, but would read all its events.
            found += later.order_by("aggregate_seq")[:limit]
    by_aggregate = defaultdict(list)
    for event in sorted(found, key=lambda one: one.aggregate_seq):
        by_aggregate[event.aggregate_id].append(event)
    return by_aggregate


def find_event(key: int) -> OutboxEvent | None:
    return OutboxEvent.across_tenants.filter(pk=key).first()


def find_event_keys(
    tenant_id: uuid.UUID, aggregate_id: uuid.UUID, event_ids: Collection[uuid.UUID]
) -> dict[uuid.UUID, int]:
    """Return the keys of those of an aggregate's events that are still kept, by their event ids."""
    events = OutboxEvent.objects.for_tenant(tenant_id).filter(aggregate_id=aggregate_id)
    return dict(events.filter(event_id__in=event_ids).values_list("event_id", "id"))


def count_newer_events(key: int, max_counted: int) -> int:
    """Count the events that were appended after this one. More than `max_counted` count as one more."""
    return OutboxEvent.across_tenants.filter(id__gt=key).order_by("id")[: max_counted + 1].count()


def find_cause(event: OutboxEvent) -> OutboxEvent | None:
    """Return the event of the same aggregate that caused this one."""
    if event.causation_id is None:
        return None
    events = OutboxEvent.objects.for_tenant(event.tenant_id).filter(aggregate_id=event.aggregate_id)
    return events.filter(event_id=event.causation_id).first()


def list_event_deliveries(event: OutboxEvent) -> list[EventDelivery]:
    """Return the webhook deliveries of the event, without their bodies, by the URL of their endpoints."""
    deliveries = list(
        WebhookDelivery.objects.for_tenant(event.tenant_id).filter(event_id=event.event_id).defer("body")
    )
    endpoints = WebhookEndpoint.objects.for_tenant(event.tenant_id)
    ids = [delivery.endpoint_id for delivery in deliveries]
    urls = dict(endpoints.filter(endpoint_id__in=ids).values_list("endpoint_id", "url"))
    found = [EventDelivery(delivery, urls.get(delivery.endpoint_id, "")) for delivery in deliveries]
    return sorted(found, key=lambda each: each.url)


def count_unpublished_by_aggregate(events: Collection[OutboxEvent]) -> dict[Aggregate, int]:
    """Count the unpublished events of each aggregate to which one of the given events belongs."""
    unpublished = OutboxEvent.across_tenants.filter(
        tenant_id__in={event.tenant_id for event in events},
        aggregate_id__in={event.aggregate_id for event in events},
        published_at=None,
    )
    counts = unpublished.values_list("tenant_id", "aggregate_id").annotate(Count("id"))
    return {(tenant_id, aggregate_id): count for tenant_id, aggregate_id, count in counts}


# --- the lists ------------------------------------------------------------------------------------------------


def _list_newest_first(wanted: EventFilter, cursor: int | None, limit: int) -> EventPage:
    events = OutboxEvent.across_tenants.order_by("-id")
    following = events if cursor is None else events.filter(id__lt=cursor)
    scanned = _scan(following, wanted, MAX_SCANNED if wanted.needs_scan else limit + 1)
    found = [key.id for key in scanned if key.matches]
    if len(found) > limit:
        return _read_page(found[:limit], found[limit - 1])
    partial = len(scanned) == MAX_SCANNED
    return _read_page(found, scanned[-1].id if partial else None, partial=partial)


def _list_waiting(wanted: EventFilter, after: int, limit: int) -> EventPage:
    """List what waits for the dispatcher. The polling index begins with the partition: the heads of all are merged."""
    head_limit = MAX_SCANNED // PARTITIONS if wanted.needs_scan else limit + 1
    waiting = _filter_state(OutboxEvent.across_tenants.all(), StateFilter.WAITING).filter(id__gt=after)
    heads = [
        _scan(waiting.filter(partition=partition).order_by("id"), wanted, head_limit)
        for partition in range(PARTITIONS)
    ]
    # Events of a partition are missing beyond the end of its head if that was cut off.
    ends = [head[-1].id for head in heads if len(head) == head_limit]
    merged = sorted(key for head in heads for key in head if not ends or key.id <= min(ends))
    found = [key.id for key in merged if key.matches]
    if len(found) > limit:
        return _read_page(found[:limit], found[limit - 1])
    return _read_page(found, min(ends) if ends else None, partial=bool(ends))


def _list_in_memory(wanted: EventFilter, cursor: int | None, limit: int) -> EventPage:
    """List what an index finds without order. Sorted here, so that no database reads all events in their order."""
    events = _filter_state(OutboxEvent.across_tenants.all(), wanted.state)
    if wanted.aggregate_id is not None:
        events = events.filter(tenant_id__in=wanted.aggregate_tenant_ids, aggregate_id=wanted.aggregate_id)
    scanned = _scan(events, wanted, MAX_SCANNED)
    newest_first = wanted.state is StateFilter.ALL
    ids = sorted((key.id for key in scanned if key.matches), reverse=newest_first)
    found = [key for key in ids if cursor is None or (key < cursor if newest_first else key > cursor)]
    if len(found) > limit:
        return _read_page(found[:limit], found[limit - 1])
    return _read_page(found, None, partial=len(scanned) == MAX_SCANNED)


def _filter_state(events: QuerySet[OutboxEvent], state: StateFilter) -> QuerySet[OutboxEvent]:
    match state:
        case StateFilter.ALL:
            return events
        case StateFilter.WAITING:
            return events.filter(WAITING)
        case StateFilter.PARKED:
            return events.filter(PARKED)
        case StateFilter.HELD:
            return events.filter(HELD)


def _scan(events: QuerySet[OutboxEvent], wanted: EventFilter, max_scanned: int) -> list[_ScannedKey]:
    keys = events.annotate(matches=wanted.build_match_flag()).values_list("id", "matches")
    return [_ScannedKey(*key) for key in keys[:max_scanned]]


def _read_page(keys: Sequence[int], cursor: int | None, *, partial: bool = False) -> EventPage:
    """Read the events in the order of the keys, without their payloads."""
    events = OutboxEvent.across_tenants.filter(pk__in=keys).defer("event_payload")
    found = {event.id: event for event in events}
    return EventPage([found[key] for key in keys if key in found], cursor, partial)

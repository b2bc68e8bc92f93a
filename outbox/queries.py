"""Lists of events, for operators. Whatever the outbox holds, a page looks at a bounded part of it.

No index serves a tenant's or a type's events, and none is worth what it would cost every event. So a list with
such a filter looks at so many events and says where it stopped; the next page goes on from there.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import Case, Count, Q, QuerySet, When

from outbox.models import OutboxEvent, WebhookDelivery, WebhookEndpoint
from outbox.writer import PARTITIONS

# What a page looks at when it has to look for what it shows.
MAX_SCANNED = 10_000


class StateFilter(StrEnum):
    """Which events a list is of."""

    ALL = "all"
    WAITING = "waiting"  # for the dispatcher
    PARKED = "parked"  # no publisher would have it
    HELD = "held"  # behind a parked one


class EventState(StrEnum):
    """What an event is in, in a word."""

    WAITING = "Waiting"
    RETRYING = "Retrying"
    PARKED = "Parked"
    HELD = "Held"
    PUBLISHED = "Published"
    SKIPPED = "Skipped"


@dataclass(frozen=True, slots=True)
class EventFilter:
    listed: StateFilter = StateFilter.ALL
    tenant_id: UUID | None = None
    event_type: str | None = None
    aggregate_id: UUID | None = None
    # The tenants in which an aggregate is looked up: the index by aggregate begins with the tenant.
    aggregate_tenant_ids: Sequence[UUID] = ()

    @property
    def seeks(self) -> bool:
        """Whether what is looked at is not simply what is listed."""
        return self.tenant_id is not None or self.event_type is not None

    def passed(self) -> Case:
        """1 for what the filter wants. What is looked at is told by each, and sought by none of its columns: for
        these a database may find an index that reads far more.
        """
        given = {"tenant_id": self.tenant_id, "event_type": self.event_type}
        wanted = Q(**{column: value for column, value in given.items() if value is not None})
        return Case(When(wanted, then=1), default=0) if wanted else Case(default=1)


@dataclass(frozen=True, slots=True)
class EventPage:
    """`cursor`: from where the next page goes on. `partial`: it ends because enough has been looked at."""

    events: Sequence[OutboxEvent]
    cursor: int | None
    partial: bool = False


class _ScannedKey(NamedTuple):
    id: int
    passes: int


def state_of(event: OutboxEvent) -> EventState:
    if event.published_at is not None:
        return EventState.PUBLISHED if event.parked_at is None else EventState.SKIPPED
    if event.parked_at is not None:
        return EventState.PARKED if event.attempts else EventState.HELD
    return EventState.RETRYING if event.attempts else EventState.WAITING


def list_events(wanted: EventFilter, cursor: int | None, limit: int) -> EventPage:
    """All: the newest first. Those that are not published: in the order in which they will be."""
    if wanted.aggregate_id is not None or wanted.listed in (StateFilter.PARKED, StateFilter.HELD):
        return _list_in_memory(wanted, cursor, limit)
    if wanted.listed is StateFilter.ALL:
        return _list_newest_first(wanted, cursor, limit)
    return _list_waiting(wanted, cursor or 0, limit)


def find_event(key: int) -> OutboxEvent | None:
    found: OutboxEvent | None = OutboxEvent.across_tenants.filter(pk=key).first()
    return found


def count_newer_events(key: int, most: int) -> int:
    """How many events have been made since that one; up to one more than `most`."""
    return OutboxEvent.across_tenants.filter(id__gt=key).order_by("id")[: most + 1].count()


def find_cause(event: OutboxEvent) -> OutboxEvent | None:
    """The event of the same aggregate that caused this one."""
    if event.causation_id is None:
        return None
    events = OutboxEvent.objects.for_tenant(event.tenant_id).filter(aggregate_id=event.aggregate_id)
    return events.filter(event_id=event.causation_id).first()


def list_event_deliveries(event: OutboxEvent) -> list[tuple[WebhookDelivery, str]]:
    """Its deliveries to webhook endpoints, each with the endpoint's URL."""
    deliveries = list(
        WebhookDelivery.objects.for_tenant(event.tenant_id).filter(event_id=event.event_id).defer("body")
    )
    endpoints = WebhookEndpoint.objects.for_tenant(event.tenant_id)
    ids = [delivery.endpoint_id for delivery in deliveries]
    urls = dict(endpoints.filter(endpoint_id__in=ids).values_list("endpoint_id", "url"))
    return sorted(((d, urls.get(d.endpoint_id, "")) for d in deliveries), key=lambda pair: pair[1])


def count_unpublished_by_aggregate(events: Collection[OutboxEvent]) -> dict[tuple[UUID, UUID], int]:
    """How many events of each of their aggregates are not published."""
    waiting = OutboxEvent.across_tenants.filter(
        tenant_id__in={event.tenant_id for event in events},
        aggregate_id__in={event.aggregate_id for event in events},
        published_at=None,
    )
    counts = waiting.values_list("tenant_id", "aggregate_id").annotate(Count("id"))
    return {(tenant_id, aggregate_id): count for tenant_id, aggregate_id, count in counts}


# --- the lists ------------------------------------------------------------------------------------------------


def _list_newest_first(wanted: EventFilter, cursor: int | None, limit: int) -> EventPage:
    events = OutboxEvent.across_tenants.order_by("-id")
    before = events if cursor is None else events.filter(id__lt=cursor)
    looked_at = _scan(before, wanted, MAX_SCANNED if wanted.seeks else limit + 1)
    found = [key.id for key in looked_at if key.passes]
    if len(found) > limit:
        return _build_page(found[:limit], found[limit - 1])
    full = len(looked_at) == MAX_SCANNED
    return _build_page(found, looked_at[-1].id if full else None, partial=full)


def _list_waiting(wanted: EventFilter, after: int, limit: int) -> EventPage:
    """The polling index is by partition first: the heads of all are merged."""
    each = MAX_SCANNED // PARTITIONS if wanted.seeks else limit + 1
    waiting = _filter_state(OutboxEvent.across_tenants.all(), StateFilter.WAITING).filter(id__gt=after)
    heads = [
        _scan(waiting.filter(partition=partition).order_by("id"), wanted, each)
        for partition in range(PARTITIONS)
    ]
    # Beyond the end of a head that was cut off, others of its partition are missing.
    ends = [head[-1].id for head in heads if len(head) == each]
    merged = sorted(key for head in heads for key in head if not ends or key.id <= min(ends))
    found = [key.id for key in merged if key.passes]
    if len(found) > limit:
        return _build_page(found[:limit], found[limit - 1])
    return _build_page(found, min(ends) if ends else None, partial=bool(ends))


def _list_in_memory(wanted: EventFilter, cursor: int | None, limit: int) -> EventPage:
    """Sorted here, so that no database walks all events for the sake of their order."""
    every = OutboxEvent.across_tenants.all()
    events = _filter_aggregate(every, wanted) if wanted.aggregate_id else every
    looked_at = _scan(_filter_state(events, wanted.listed), wanted, MAX_SCANNED)
    newest_first = wanted.listed is StateFilter.ALL
    ids = sorted((key.id for key in looked_at if key.passes), reverse=newest_first)
    found = [key for key in ids if cursor is None or (key < cursor if newest_first else key > cursor)]
    more = len(found) > limit
    return _build_page(
        found[:limit], found[limit - 1] if more else None, partial=not more and len(looked_at) == MAX_SCANNED
    )


def _filter_aggregate(events: QuerySet[Any], wanted: EventFilter) -> QuerySet[Any]:
    return events.filter(tenant_id__in=wanted.aggregate_tenant_ids, aggregate_id=wanted.aggregate_id)


def _filter_state(events: QuerySet[Any], listed: StateFilter) -> QuerySet[Any]:
    match listed:
        case StateFilter.ALL:
            return events
        case StateFilter.WAITING:
            return events.filter(published_at=None, parked_at=None)
        case StateFilter.PARKED:
            return events.filter(published_at=None, parked_at__isnull=False, attempts__gt=0)
        case StateFilter.HELD:
            return events.filter(published_at=None, parked_at__isnull=False, attempts=0)


def _scan(events: QuerySet[Any], wanted: EventFilter, most: int) -> list[_ScannedKey]:
    told = events.annotate(passes=wanted.passed()).values_list("id", "passes")
    return [_ScannedKey(*row) for row in told[:most]]


def _build_page(keys: Sequence[int], cursor: int | None, *, partial: bool = False) -> EventPage:
    """In the order of the keys, without their payloads."""
    events = OutboxEvent.across_tenants.filter(pk__in=keys).defer("event_payload")
    found = {event.id: event for event in events}
    return EventPage([found[key] for key in keys if key in found], cursor, partial)

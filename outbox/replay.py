"""Replay: published events are published again, or delivered to an endpoint that missed them. This is done in short
transactions, so that nothing waits for it."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from django.db import transaction
from django.db.models import Count, Max, Q, QuerySet

from eventservice.db.bulk import execute_rows
from outbox.models import DeliveryState, OutboxEvent, WebhookDelivery, WebhookEndpoint
from outbox.publishers.webhook.publisher import add_deliveries
from outbox.store import read_events

BATCH_ROWS = 500


class _PublishedEvent(NamedTuple):
    id: int
    tenant_id: uuid.UUID
    event_id: uuid.UUID


def replay(since: datetime, tenant_id: uuid.UUID | None = None, after: int = 0) -> int:
    """Have the dispatcher publish again, under the same ids, the events published since. Return how many.

    Their finished webhook deliveries are made again. A skipped event stays skipped. No index serves the time of
    publishing: all events after the one with the id `after` are read.
    """
    replayed = 0
    for events in _iterate_published_since(since, tenant_id, after):
        with transaction.atomic():
            replayed += execute_rows(
                "UPDATE outbox SET published_at = NULL, attempts = 0 WHERE id = %s",
                [(event.id,) for event in events],
            )
            _delete_finished_deliveries(events)
    return replayed


def deliver_missing(endpoint: WebhookEndpoint, since: datetime) -> int:
    """Have the events published since delivered to the endpoint, if it subscribes to them and has no delivery of them.

    Return how many. No event is sent twice: what the endpoint was sent before, or waits for, has a delivery.
    """
    return sum(
        add_deliveries(endpoint, read_events([event.id for event in events]))
        for events in _iterate_published_since(since, endpoint.tenant_id)
        if events
    )


@dataclass(frozen=True, slots=True)
class ReplayPreview:
    """The result of counting what a replay of only the latest events would publish again."""

    count: int
    after: int  # the id of the last event that was not read; 0 if all were
    earliest: datetime | None  # when the earliest event that was read was created; None if all were read

    def reaches(self, since: datetime) -> bool:
        """Return whether all events created since then were read. An event that was published late may be older."""
        return self.earliest is None or self.earliest <= since


def preview_replay(since: datetime, tenant_id: uuid.UUID | None, max_scanned: int) -> ReplayPreview:
    """Count what a replay would publish again among the latest `max_scanned` events."""
    latest = OutboxEvent.across_tenants.order_by("-id").values_list("id", "created_at")
    after, earliest = next(iter(latest[max_scanned : max_scanned + 1]), (0, None))
    window = _filter_published_since(since, after, _get_last_id())[:max_scanned]
    wanted = Q() if tenant_id is None else Q(tenant_id=tenant_id)
    return ReplayPreview(window.aggregate(count=Count("id", filter=wanted))["count"], after, earliest)


def _iterate_published_since(
    since: datetime, tenant_id: uuid.UUID | None, after: int = 0
) -> Iterator[list[_PublishedEvent]]:
    """Yield the events published since, in batches, those of one tenant or of all. A batch may be empty."""
    last = _get_last_id()
    while window := list(_filter_published_since(since, after, last)[:BATCH_ROWS]):
        yield [_PublishedEvent(*row) for row in window if tenant_id in (None, row[1])]
        after = window[-1][0]


def _get_last_id() -> int:
    return OutboxEvent.across_tenants.aggregate(last=Max("id"))["last"] or 0


def _filter_published_since(
    since: datetime, after: int, last: int
) -> QuerySet[OutboxEvent, tuple[int, uuid.UUID, uuid.UUID]]:
    """Select events of all tenants. To choose one tenant's here, databases would rather read all that it has."""
    events = OutboxEvent.across_tenants.filter(id__gt=after, id__lte=last)
    published = events.filter(published_at__gte=since, parked_at=None)
    return published.order_by("id").values_list("id", "tenant_id", "event_id")


def _delete_finished_deliveries(events: Sequence[_PublishedEvent]) -> None:
    by_tenant: defaultdict[uuid.UUID, list[uuid.UUID]] = defaultdict(list)
    for event in events:
        by_tenant[event.tenant_id].append(event.event_id)
    for tenant_id, event_ids in by_tenant.items():
        deliveries = WebhookDelivery.objects.for_tenant(tenant_id).filter(event_id__in=event_ids)
        deliveries.exclude(state=DeliveryState.PENDING).delete()

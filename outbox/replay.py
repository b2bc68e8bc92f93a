"""Replay: published events are published again, in short transactions, so that nothing waits for it."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from django.db import transaction
from django.db.models import Count, Max, Q, QuerySet

from eventservice.db.bulk import execute_rows
from outbox.models import DeliveryState, OutboxEvent, WebhookDelivery

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
    last, replayed = _get_last_id(), 0
    while window := list(_filter_published_since(since, after, last)[:BATCH_ROWS]):
        events = [_PublishedEvent(*row) for row in window if tenant_id in (None, row[1])]
        with transaction.atomic():
            replayed += execute_rows(
                "UPDATE outbox SET published_at = NULL, attempts = 0 WHERE id = %s",
                [(event.id,) for event in events],
            )
            _delete_finished_deliveries(events)
        after = window[-1][0]
    return replayed


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

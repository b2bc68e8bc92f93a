"""Retention, and publishing again. Both in short transactions, so that nobody waits for them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Count, Max, Q, QuerySet

from eventservice.db.bulk import execute_rows
from eventservice.db.now import db_now
from outbox.models import DeliveryState, OutboxEvent, WebhookDelivery

BATCH = 500


def prune(older_than: timedelta, limit: int = 100_000) -> int:
    """Deletes published events and finished deliveries of that age; how many rows, at most `limit`."""
    before = db_now() - older_than
    pruned = _prune_events(before, limit)
    return pruned + _prune_deliveries(before, limit - pruned)


def _prune_events(before: datetime, limit: int) -> int:
    """In the order of ids, which is nearly that of making: an index by published_at would cost every event more than
    it saves here. What was published again lately lies among the old ones, and is passed over."""
    published = OutboxEvent.across_tenants.filter(published_at__isnull=False).order_by("id")
    pruned = after = 0
    while pruned < limit:
        following = published.filter(id__gt=after).values_list("id", "created_at", "published_at")
        window = list(following[:BATCH])
        # Nothing is published before it is made: where all are younger than that, none that follows is old.
        if not any(created_at < before for _, created_at, _ in window):
            break
        old = [(key, before) for key, _, published_at in window if published_at and published_at < before]
        with transaction.atomic():
            pruned += execute_rows(
                "DELETE FROM outbox WHERE id = %s AND published_at < %s", old[: limit - pruned]
            )
        after = window[-1][0]
    return pruned


def _prune_deliveries(before: datetime, limit: int) -> int:
    pruned = 0
    while pruned < limit:
        old = WebhookDelivery.across_tenants.filter(finished_at__lt=before).order_by("finished_at")
        keys = old.values_list("tenant_id", "delivery_id")[: min(BATCH, limit - pruned)]
        with transaction.atomic():
            deleted = execute_rows(
                "DELETE FROM webhook_deliveries WHERE tenant_id = %s AND delivery_id = %s", keys
            )
        if not deleted:
            break
        pruned += deleted
    return pruned


def replay(since: datetime, tenant_id: UUID | None = None, after: int = 0) -> int:
    """Has the dispatcher publish again what was published since, under the same event ids; how many events.

    Their finished webhook deliveries are made anew. A skipped event stays skipped. What was published when cannot
    be sought: all events after the one with the id `after` are read.
    """
    last, replayed = _get_last_id(), 0
    while window := list(_filter_published_since(since, after, last)[:BATCH]):
        events = [event for event in window if tenant_id in (None, event[1])]
        with transaction.atomic():
            replayed += execute_rows(
                "UPDATE outbox SET published_at = NULL, attempts = 0 WHERE id = %s",
                [(key,) for key, *_ in events],
            )
            _delete_finished_deliveries(events)
        after = window[-1][0]
    return replayed


@dataclass(frozen=True, slots=True)
class ReplayPreview:
    """What a replay that looks at the latest events only would publish again."""

    count: int
    after: int  # the id of the last event that is not looked at; 0 when all are
    earliest: datetime | None  # when the earliest was made that is looked at; None when all are

    def reaches(self, since: datetime) -> bool:
        """Whether all events are looked at that were made since; what was published late may be older."""
        return self.earliest is None or self.earliest <= since


def preview_replay(since: datetime, tenant_id: UUID | None, look_at: int) -> ReplayPreview:
    """Of so many of the latest events."""
    latest = OutboxEvent.across_tenants.order_by("-id").values_list("id", "created_at")
    after, earliest = next(iter(latest[look_at : look_at + 1]), (0, None))
    window = _filter_published_since(since, after, _get_last_id())[:look_at]
    wanted = Q() if tenant_id is None else Q(tenant_id=tenant_id)
    return ReplayPreview(window.aggregate(count=Count("id", filter=wanted))["count"], after, earliest)


def _get_last_id() -> int:
    return OutboxEvent.across_tenants.aggregate(last=Max("id"))["last"] or 0


def _filter_published_since(since: datetime, after: int, last: int) -> QuerySet[Any]:
    """A tenant's are chosen among them later: databases would rather read all that the tenant has."""
    events = OutboxEvent.across_tenants.filter(id__gt=after, id__lte=last)
    since_then = events.filter(published_at__gte=since, parked_at=None)
    return since_then.order_by("id").values_list("id", "tenant_id", "event_id")


def _delete_finished_deliveries(events: Sequence[tuple[int, UUID, UUID]]) -> None:
    by_tenant: defaultdict[UUID, list[UUID]] = defaultdict(list)
    for _, tenant_id, event_id in events:
        by_tenant[tenant_id].append(event_id)
    for tenant_id, event_ids in by_tenant.items():
        deliveries = WebhookDelivery.objects.for_tenant(tenant_id).filter(event_id__in=event_ids)
        deliveries.exclude(state=DeliveryState.PENDING).delete()

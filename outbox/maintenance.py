"""Retention, and publishing again. Both in short transactions, so that nobody waits for them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Max, QuerySet

from eventservice.kernel.bulk import execute_rows
from eventservice.kernel.now import db_now
from outbox.models import DeliveryState, OutboxEvent, WebhookDelivery

BATCH = 500


def prune(older_than: timedelta, limit: int = 100_000) -> int:
    """Deletes published events and finished deliveries of that age; how many rows, at most `limit`."""
    before = db_now() - older_than
    pruned = _prune_events(before, limit)
    return pruned + _prune_deliveries(before, limit - pruned)


def _prune_events(before: datetime, limit: int) -> int:
    pruned = 0
    while pruned < limit:
        # In the order of ids, which is nearly that of publishing: an index by published_at would cost every
        # event more than it saves here. The oldest that are published, and none of them old: there are no more.
        oldest = OutboxEvent.objects.across_tenants().filter(published_at__isnull=False).order_by("id")
        window = oldest.values_list("id", "published_at")[: min(BATCH, limit - pruned)]
        old = [(key, before) for key, published_at in window if published_at < before]
        if not old:
            break
        with transaction.atomic():
            pruned += execute_rows("DELETE FROM outbox WHERE id = %s AND published_at < %s", old)
    return pruned


def _prune_deliveries(before: datetime, limit: int) -> int:
    pruned = 0
    while pruned < limit:
        old = WebhookDelivery.objects.across_tenants().filter(finished_at__lt=before).order_by("finished_at")
        keys = old.values_list("tenant_id", "delivery_id")[: min(BATCH, limit - pruned)]
        with transaction.atomic():
            deleted = execute_rows(
                "DELETE FROM webhook_deliveries WHERE tenant_id = %s AND delivery_id = %s", keys
            )
        if not deleted:
            break
        pruned += deleted
    return pruned


def replay(since: datetime, tenant_id: UUID | None = None) -> int:
    """Has the dispatcher publish again what was published since, under the same event ids; how many events.

    Their finished webhook deliveries are made anew. A skipped event stays skipped.
    """
    last = OutboxEvent.objects.across_tenants().aggregate(last=Max("id"))["last"] or 0
    after = replayed = 0
    while events := _published_since(since, tenant_id, after, last):
        with transaction.atomic():
            replayed += execute_rows(
                "UPDATE outbox SET published_at = NULL, attempts = 0 WHERE id = %s",
                [(key,) for key, *_ in events],
            )
            _forget_deliveries(events)
        after = events[-1][0]
    return replayed


def _published_since(
    since: datetime, tenant_id: UUID | None, after: int, last: int
) -> list[tuple[int, UUID, UUID]]:
    every = OutboxEvent.objects
    events: QuerySet[Any] = every.across_tenants() if tenant_id is None else every.for_tenant(tenant_id)
    since_then = events.filter(id__gt=after, id__lte=last, published_at__gte=since, parked_at=None)
    return list(since_then.order_by("id").values_list("id", "tenant_id", "event_id")[:BATCH])


def _forget_deliveries(events: Sequence[tuple[int, UUID, UUID]]) -> None:
    by_tenant: defaultdict[UUID, list[UUID]] = defaultdict(list)
    for _, tenant_id, event_id in events:
        by_tenant[tenant_id].append(event_id)
    for tenant_id, event_ids in by_tenant.items():
        deliveries = WebhookDelivery.objects.for_tenant(tenant_id).filter(event_id__in=event_ids)
        deliveries.exclude(state=DeliveryState.PENDING).delete()

"""Retention: the deletion of old events and deliveries, in short transactions, so that nothing waits for it."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db import transaction

from eventservice.db.bulk import execute_rows
from eventservice.db.now import db_now
from outbox.models import OutboxEvent, WebhookDelivery

BATCH_ROWS = 500
# No broker waits for the event.
IN_NO_QUEUE = "NOT EXISTS (SELECT 1 FROM broker_queue q WHERE q.event_id = outbox.id)"


class Pruned(NamedTuple):
    """How many rows were deleted."""

    events: int
    deliveries: int


def prune(older_than: timedelta, limit: int = 100_000) -> Pruned:
    """Delete published events and finished deliveries of that age, at most `limit` together."""
    before = db_now() - older_than
    events = _prune_events(before, limit)
    return Pruned(events, _prune_deliveries(before, limit - events))


def _prune_events(before: datetime, limit: int) -> int:
    """Delete events in the order of ids, which is nearly that of their creation.

    An index by published_at would cost every event more than it saves here. Events that were published again
    lately are among the old ones, and are skipped.
    """
    published = OutboxEvent.across_tenants.filter(published_at__isnull=False).order_by("id")
    pruned = after = 0
    while pruned < limit:
        following = published.filter(id__gt=after).values_list("id", "created_at", "published_at")
        window = list(following[:BATCH_ROWS])
        # Nothing is published before it is created: if all are younger than that, none that follows is old.
        if not any(created_at < before for _, created_at, _ in window):
            break
        old = [(key, before) for key, _, published_at in window if published_at and published_at < before]
        with transaction.atomic():
            pruned += execute_rows(
                f"DELETE FROM outbox WHERE id = %s AND published_at < %s AND {IN_NO_QUEUE}",
                old[: limit - pruned],
            )
        after = window[-1][0]
    return pruned


def _prune_deliveries(before: datetime, limit: int) -> int:
    pruned = 0
    while pruned < limit:
        old = WebhookDelivery.across_tenants.filter(finished_at__lt=before).order_by("finished_at")
        keys = old.values_list("tenant_id", "delivery_id")[: min(BATCH_ROWS, limit - pruned)]
        with transaction.atomic():
            deleted = execute_rows(
                "DELETE FROM webhook_deliveries WHERE tenant_id = %s AND delivery_id = %s", keys
            )
        if not deleted:
            break
        pruned += deleted
    return pruned


def delete_published_events(tenant_id: uuid.UUID, aggregate_id: uuid.UUID) -> None:
    """Delete the published events of a deleted aggregate. The others have yet to be published, also to a broker."""
    execute_rows(
        f"DELETE FROM outbox WHERE tenant_id = %s AND aggregate_id = %s AND published_at IS NOT NULL AND {IN_NO_QUEUE}",
        [(tenant_id, aggregate_id)],
    )

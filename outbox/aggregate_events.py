"""The events of one aggregate, as long as the outbox keeps them."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from outbox.models import OutboxEvent


def timeline_of(
    tenant_id: uuid.UUID, aggregate_id: uuid.UUID, after: int, limit: int
) -> Sequence[OutboxEvent]:
    """In order, those that follow the event with the sequence number `after`."""
    events = OutboxEvent.objects.for_tenant(tenant_id).filter(
        aggregate_id=aggregate_id, aggregate_seq__gt=after
    )
    return list(events.order_by("aggregate_seq")[:limit])


def forget(tenant_id: uuid.UUID, aggregate_id: uuid.UUID) -> None:
    """Of an aggregate that is no more: what has been published. The rest is still to be told; retention takes it."""
    events = OutboxEvent.objects.for_tenant(tenant_id).filter(aggregate_id=aggregate_id)
    events.filter(published_at__isnull=False).delete()

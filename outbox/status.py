"""What an operator looks at first: how much waits, since when, and who is at work."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from django.db.models import Count, Min

from eventservice.kernel.now import db_now
from outbox.models import DeliveryState, OutboxEvent, OutboxPartition, WebhookDelivery
from outbox.parking import parked_events


@dataclass(frozen=True, slots=True)
class Status:
    unpublished: int
    # Of the oldest event that waits for the dispatcher; zero when none does.
    lag: timedelta
    parked: int
    waiting_behind_parked: int
    partitions_of: dict[UUID, int]
    unowned_partitions: int
    pending_deliveries: int


def status() -> Status:
    now = db_now()
    unpublished = OutboxEvent.objects.across_tenants().filter(published_at=None)
    flowing = unpublished.filter(parked_at=None).aggregate(count=Count("id"), oldest=Min("created_at"))
    held = unpublished.filter(parked_at__isnull=False).count()
    parked = parked_events().count()
    owned = OutboxPartition.objects.filter(lease_until__gte=now).values_list("owner_id").annotate(Count("pk"))
    owners = dict(owned)
    return Status(
        unpublished=flowing["count"],
        lag=now - flowing["oldest"] if flowing["oldest"] else timedelta(),
        parked=parked,
        waiting_behind_parked=held - parked,
        partitions_of=owners,
        unowned_partitions=OutboxPartition.objects.count() - sum(owners.values()),
        pending_deliveries=WebhookDelivery.objects.across_tenants()
        .filter(state=DeliveryState.PENDING)
        .count(),
    )

"""What an operator looks at first: how much waits, since when, and who is at work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db import connection
from django.db.models import Count, Q, QuerySet

from eventservice.db.now import db_now
from eventservice.db.sql import as_uuid
from outbox.models import DeliveryState, OutboxEvent, OutboxPartition, WebhookDelivery
from outbox.store import read_heads
from outbox.writer import PARTITIONS

# A count stops here, and is then one more: "more than that" is all that anybody needs to know.
MAX_COUNTED = 100_000

COUNT_WAITING_BY_TYPE = """
SELECT tenant_id, event_type, COUNT(*) FROM (
    SELECT tenant_id, event_type FROM outbox WHERE published_at IS NULL AND parked_at IS NULL LIMIT %s
) AS waiting GROUP BY tenant_id, event_type ORDER BY 3 DESC, 2, 1"""


@dataclass(frozen=True, slots=True)
class OutboxStatus:
    unpublished: int
    # Of the oldest event that waits for the dispatcher; zero when none does.
    lag: timedelta
    parked: int
    waiting_behind_parked: int
    partitions_of: dict[UUID, int]
    unowned_partitions: int
    pending_deliveries: int


@dataclass(frozen=True, slots=True)
class WaitingGroup:
    """How many events of a tenant, of a type, wait for the dispatcher."""

    tenant_id: UUID
    event_type: str
    count: int


def get_status(most: int = MAX_COUNTED) -> OutboxStatus:
    now = db_now()
    parked, behind = _count_parked(most)
    owned = OutboxPartition.objects.filter(lease_until__gte=now).values_list("owner_id").annotate(Count("pk"))
    owners = dict(owned)
    heads, _ = read_heads(range(PARTITIONS), 1)
    return OutboxStatus(
        unpublished=_filter_waiting()[: most + 1].count(),
        lag=now - min([now, *(head.time for head in heads)]),
        parked=parked,
        waiting_behind_parked=behind,
        partitions_of=owners,
        unowned_partitions=OutboxPartition.objects.count() - sum(owners.values()),
        pending_deliveries=_filter_pending_deliveries()[: most + 1].count(),
    )


def count_waiting_by_type(most: int) -> list[WaitingGroup]:
    """The largest groups first, of so many events that wait.

    They come partition by partition, and aggregates fall evenly into these: the shares are nearly those of all.
    """
    with connection.cursor() as cursor:
        cursor.execute(COUNT_WAITING_BY_TYPE, [most])
        return [WaitingGroup(as_uuid(tenant), kind, count) for tenant, kind, count in cursor.fetchall()]


def list_partitions() -> Sequence[OutboxPartition]:
    return list(OutboxPartition.objects.order_by("partition"))


def _filter_waiting() -> QuerySet[Any]:
    return OutboxEvent.across_tenants.filter(published_at=None, parked_at=None)


def _filter_pending_deliveries() -> QuerySet[Any]:
    return WebhookDelivery.across_tenants.filter(state=DeliveryState.PENDING)


def _count_parked(most: int) -> tuple[int, int]:
    """The poison events, and those that are parked with them."""
    held = OutboxEvent.across_tenants.filter(published_at=None, parked_at__isnull=False)
    counted = held[: most + 1].aggregate(all=Count("id"), poison=Count("id", filter=Q(attempts__gt=0)))
    return counted["poison"], counted["all"] - counted["poison"]

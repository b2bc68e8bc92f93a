"""The status of the outbox: how much waits, since when, and which dispatchers are at work."""

from __future__ import annotations

import uuid
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

from django.db import connection
from django.db.models import Count, Q

from eventservice.db.now import db_now
from eventservice.db.sql import as_uuid
from outbox.broker_queue import BrokerBacklog, list_backlogs
from outbox.models import (
    OUT_OF_QUEUE,
    WAITING,
    DeliveryState,
    OutboxEvent,
    OutboxPartition,
    WebhookDelivery,
)
from outbox.store import quote_partition, read_heads
from outbox.writer import PARTITIONS

# Larger counts are reported as one more than this.
MAX_COUNTED = 100_000

COUNT_WAITING_BY_TYPE = """
SELECT tenant_id, event_type, COUNT(*) FROM (
    SELECT tenant_id, event_type FROM outbox WHERE published_at IS NULL AND parked_at IS NULL
    ORDER BY {partition}, id LIMIT %s
) AS waiting GROUP BY tenant_id, event_type ORDER BY 3 DESC, 2, 1"""


@dataclass(frozen=True, slots=True)
class OutboxStatus:
    unpublished: int
    # The age of the oldest event that waits for the dispatcher; zero if none does.
    lag: timedelta
    parked: int
    waiting_behind_parked: int
    # How many partitions each live dispatcher owns.
    partitions_by_owner: dict[uuid.UUID, int]
    unowned_partitions: int
    pending_deliveries: int
    # The queues of brokers that are not empty.
    broker_backlogs: list[BrokerBacklog]


@dataclass(frozen=True, slots=True)
class WaitingGroup:
    """The number of events of one type and tenant that wait for the dispatcher."""

    tenant_id: uuid.UUID
    event_type: str
    count: int


def get_status(max_counted: int = MAX_COUNTED) -> OutboxStatus:
    """Return the status. A count above `max_counted` is one more than that."""
    now = db_now()
    waiting = OutboxEvent.across_tenants.filter(WAITING).order_by("partition", "id")  # as in the index
    pending = WebhookDelivery.across_tenants.filter(state=DeliveryState.PENDING)
    parked = _count_parked(max_counted)
    partitions = list_partitions()
    partitions_by_owner = Counter(
        partition.owner_id
        for partition in partitions
        if partition.owner_id is not None and partition.lease_until and partition.lease_until >= now
    )
    heads, _ = read_heads(range(PARTITIONS), 1)
    return OutboxStatus(
        unpublished=waiting[: max_counted + 1].count(),
        lag=now - min([now, *(head.time for head in heads)]),
        parked=parked.parked,
        waiting_behind_parked=parked.held,
        partitions_by_owner=partitions_by_owner,
        unowned_partitions=len(partitions) - partitions_by_owner.total(),
        pending_deliveries=pending[: max_counted + 1].count(),
        broker_backlogs=list_backlogs(max_counted),
    )


def count_waiting_by_type(max_scanned: int) -> list[WaitingGroup]:
    """Group the first `max_scanned` events that wait by tenant and type, the largest groups first.

    They come partition by partition. Aggregates are spread evenly over the partitions, so the shares are nearly those
    of all events that wait.
    """
    with connection.cursor() as cursor:
        cursor.execute(COUNT_WAITING_BY_TYPE.format(partition=quote_partition()), [max_scanned])
        return [WaitingGroup(as_uuid(tenant), kind, count) for tenant, kind, count in cursor.fetchall()]


def list_partitions() -> list[OutboxPartition]:
    return list(OutboxPartition.objects.order_by("partition"))


class _ParkedCounts(NamedTuple):
    parked: int
    held: int


def _count_parked(max_counted: int) -> _ParkedCounts:
    events = OutboxEvent.across_tenants.filter(OUT_OF_QUEUE)
    counted = events[: max_counted + 1].aggregate(
        all=Count("id"), parked=Count("id", filter=Q(attempts__gt=0))
    )
    return _ParkedCounts(counted["parked"], counted["all"] - counted["parked"])

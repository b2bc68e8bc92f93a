"""Appends events in the transaction of the change that they describe."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from django.db import connection
from django.db.models import Max

from eventservice.db.bulk import insert_rows
from eventservice.kernel.ids import new_id
from outbox.models import AggregateType, OutboxEvent

PARTITIONS = 16

COLUMNS = (
    "tenant_id", "aggregate_id", "aggregate_seq", "event_type", "event_payload", "created_at", "event_id",
    "correlation_id", "causation_id", "partition", "attempts", "aggregate_type",
)  # fmt: skip


class OutsideTransaction(Exception):
    """Raised for an event that would be stored without its change, which the outbox is there to prevent."""


@dataclass(
    slots=True
)  # not frozen: an engine makes thousands per second, and freezing would double their cost
class Event:
    """A fact about an aggregate, named in the past tense. `data` contains no secrets and no full bodies."""

    tenant_id: uuid.UUID
    aggregate_id: uuid.UUID
    seq: int
    type: str
    data: Mapping[str, object]
    occurred_at: datetime
    correlation_id: uuid.UUID
    causation_id: uuid.UUID | None = None
    event_id: uuid.UUID = field(default_factory=new_id)
    aggregate_type: str = AggregateType.SERVICE_CALL.value


def append_events(events: Iterable[Event]) -> None:
    """Store the events. Raise OutsideTransaction if there is no transaction."""
    if not connection.in_atomic_block:
        raise OutsideTransaction("append_events() must be called in the transaction of the change.")
    insert_rows(
        OutboxEvent,
        COLUMNS,
        [
            (
                e.tenant_id, e.aggregate_id, e.seq, e.type, e.data, e.occurred_at, e.event_id,
                e.correlation_id, e.causation_id, compute_partition(e.aggregate_id), 0, e.aggregate_type,
            )
            for e in events
        ],
    )  # fmt: skip


def find_aggregates_with_events(tenant_id: uuid.UUID, ids: Collection[uuid.UUID]) -> set[uuid.UUID]:
    """Return those of a tenant's aggregates of which events are kept."""
    events = OutboxEvent.objects.for_tenant(tenant_id).filter(aggregate_id__in=ids)
    return set(events.values_list("aggregate_id", flat=True).distinct())


def find_last_seqs(tenant_id: uuid.UUID, ids: Collection[uuid.UUID]) -> dict[uuid.UUID, int]:
    """Return the number of the last event that is kept of each of a tenant's aggregates."""
    events = OutboxEvent.objects.for_tenant(tenant_id).filter(aggregate_id__in=ids)
    found = events.values("aggregate_id").annotate(last=Max("aggregate_seq"))
    return {row["aggregate_id"]: row["last"] for row in found}


def compute_partition(aggregate_id: uuid.UUID) -> int:
    # The random end of a UUIDv7 is spread evenly.
    return aggregate_id.int % PARTITIONS

"""What an operator can do about an event that no publisher would have: try it again, or let it go unpublished."""

from __future__ import annotations

from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet

from eventservice.kernel.now import DbNow
from outbox.models import OutboxEvent, OutboxPartition


def parked_events() -> QuerySet[OutboxEvent]:
    """The poison events themselves, one an aggregate at most; the others parked with them only wait."""
    events: QuerySet[OutboxEvent] = OutboxEvent.objects.across_tenants()
    return events.filter(published_at=None, parked_at__isnull=False, attempts__gt=0).order_by(
        "parked_at", "id"
    )


def unpark(key: int) -> bool:
    """Try the event again, and after it those that wait behind it. False when it is not parked (any more)."""
    return _resolve(key, skip=False)


def skip(key: int) -> bool:
    """Let the event count as published, and those behind it go on. It keeps `parked_at`: it never was sent."""
    return _resolve(key, skip=True)


@transaction.atomic
def _resolve(key: int, *, skip: bool) -> bool:
    event = parked_events().filter(pk=key).first()
    if event is None:
        return False
    _shut_out_dispatcher(event.partition)
    parked = parked_events().filter(pk=key)
    # The dispatcher may have been here first; then there is nothing left to do.
    done = parked.update(published_at=DbNow()) if skip else parked.update(attempts=0, parked_at=None)
    if done:
        _let_go(event.tenant_id, event.aggregate_id)
    return bool(done)


def _shut_out_dispatcher(partition: int) -> None:
    # Its fence holds this row shared: it cannot park another event of the aggregate while these are let go.
    list(OutboxPartition.objects.select_for_update().filter(pk=partition))


def _let_go(tenant_id: UUID, aggregate_id: UUID) -> None:
    waiting = OutboxEvent.objects.for_tenant(tenant_id).filter(aggregate_id=aggregate_id, published_at=None)
    waiting.filter(parked_at__isnull=False).update(parked_at=None)

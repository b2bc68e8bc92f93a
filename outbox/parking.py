"""What an operator can do about an event that no publisher would have: try it again, or let it go unpublished.

And about one that must not go out yet: park it by hand, to the same end.
"""

from __future__ import annotations

from uuid import UUID

from django.db import transaction
from django.db.models import F, QuerySet
from django.db.models.functions import Greatest

from eventservice.db.now import DbNow
from outbox.models import OutboxEvent, OutboxPartition


def list_parked_events() -> QuerySet[OutboxEvent]:
    """The poison events themselves, one an aggregate at most; the others parked with them only wait."""
    events: QuerySet[OutboxEvent] = OutboxEvent.across_tenants.all()
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
def park(key: int, reason: str) -> bool:
    """Take an event out of the flow that has not been published, and all that is unpublished of its aggregate.

    False when it is published or parked already, or its aggregate is. What a publisher has been given this very
    moment may go out all the same; it goes out again if the event is tried again.
    """
    waiting = OutboxEvent.across_tenants.filter(pk=key, published_at=None, parked_at=None)
    event = waiting.first()
    if event is None:
        return False
    _revoke_partition(event.partition)
    of_aggregate = OutboxEvent.objects.for_tenant(event.tenant_id).filter(
        aggregate_id=event.aggregate_id, published_at=None
    )
    if of_aggregate.filter(parked_at__isnull=False).exists():
        return False
    # Whoever is parked has been tried: that tells it from those that wait behind it.
    parked = waiting.update(parked_at=DbNow(), attempts=Greatest(F("attempts"), 1), last_error=reason)
    if parked:
        of_aggregate.filter(parked_at=None).update(parked_at=DbNow())
    return bool(parked)


@transaction.atomic
def _resolve(key: int, *, skip: bool) -> bool:
    event = list_parked_events().filter(pk=key).first()
    if event is None:
        return False
    _lock_partition(event.partition)
    parked = list_parked_events().filter(pk=key)
    # The dispatcher may have been here first; then there is nothing left to do.
    done = parked.update(published_at=DbNow()) if skip else parked.update(attempts=0, parked_at=None)
    if done:
        _unpark_followers(event.tenant_id, event.aggregate_id)
    return bool(done)


def _lock_partition(partition: int) -> None:
    # Its fence holds this row shared: it cannot park another event of the aggregate while these are let go.
    list(OutboxPartition.objects.select_for_update().filter(pk=partition))


def _revoke_partition(partition: int) -> None:
    # It may be publishing the event now: with its lease gone it marks nothing of it as published, which would
    # leave those behind a parked event that there is no more. It claims the partition again in some seconds.
    _lock_partition(partition)
    OutboxPartition.objects.filter(pk=partition).update(
        version=F("version") + 1, owner_id=None, lease_until=None
    )


def _unpark_followers(tenant_id: UUID, aggregate_id: UUID) -> None:
    waiting = OutboxEvent.objects.for_tenant(tenant_id).filter(aggregate_id=aggregate_id, published_at=None)
    waiting.filter(parked_at__isnull=False).update(parked_at=None)

"""Parked events: operators try them again or skip them, and park events that must not be published yet."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from django.db import transaction
from django.db.models import F, QuerySet
from django.db.models.functions import Greatest

from eventservice.db.leases import release_leases
from eventservice.db.now import DbNow
from outbox.envelope import Aggregate, Envelope
from outbox.models import PARKED, WAITING, BrokerQueueEntry, OutboxEvent, OutboxPartition
from outbox.publisher_spec import NAME
from outbox.store import MAX_ATTEMPTS


def list_parked_events() -> QuerySet[OutboxEvent]:
    """Select the parked events themselves, at most one for each aggregate. The events held behind them only wait."""
    return OutboxEvent.across_tenants.filter(PARKED).order_by("parked_at", "id")


def find_parked_key(event_id: UUID) -> int | None:
    """Return the key of the parked event with this event id."""
    return list_parked_events().filter(event_id=event_id).values_list("id", flat=True).first()


def find_refusing_publisher(event: OutboxEvent) -> str | None:
    """Return the name of the publisher that refused a parked event, or None if an operator has parked it.

    A publisher's refusal begins with its name. The reason of an operator that begins like a name is taken for one.
    """
    name, separator, _ = (event.last_error or "").partition(": ")
    return name if separator and NAME.fullmatch(name) else None


def unpark(key: int) -> bool:
    """Have the event tried again, and the events behind it after it. Return False if it is not parked (any more)."""
    return _resolve(key, skip=False)


def skip(key: int) -> bool:
    """Count the event as published, and let the events behind it go on. Return False if it is not parked (any more).

    It keeps `parked_at`, since it was never sent.
    """
    return _resolve(key, skip=True)


@transaction.atomic
def park(key: int, reason: str) -> bool:
    """Park an unpublished event, and hold all unpublished events of its aggregate.

    Return False if it is published or parked already, or its aggregate is parked. An event that a
    publisher has just been given may be published nevertheless; retrying it then publishes it again.
    """
    waiting = OutboxEvent.across_tenants.filter(WAITING, pk=key)
    event = waiting.first()
    if event is None:
        return False
    _revoke_partition(event.partition)
    unpublished = _filter_unpublished(event.tenant_id, event.aggregate_id)
    if unpublished.filter(parked_at__isnull=False).exists():
        return False
    # Only the parked event has attempts. Those that are held behind it have none.
    parked = waiting.update(parked_at=DbNow(), attempts=Greatest(F("attempts"), 1), last_error=reason)
    if parked:
        unpublished.filter(parked_at=None).update(parked_at=DbNow())
    return bool(parked)


def hold_followers(aggregates: Iterable[Aggregate]) -> None:
    """Hold the events behind the parked one of each aggregate, if it is still parked: they leave the polling index.

    The caller's fence excludes `unpark` and `skip`, which would miss what is held while they run.
    """
    for aggregate in aggregates:
        unpublished = _filter_unpublished(*aggregate)
        if unpublished.filter(parked_at__isnull=False).exists():
            unpublished.filter(parked_at=None).update(parked_at=DbNow())


def park_refused(event: Envelope, publisher: str, error: str) -> None:
    """Park a published event that a broker will never accept, and hold the later events of its aggregate.

    Those that wait for the broker count as unpublished again: when an operator resolves the event, all publishers get
    them once more, in order. The caller's fence excludes `unpark` and `skip`.
    """
    queued = BrokerQueueEntry.objects.filter(publisher=publisher, event_id__gte=event.id)
    keys = list(
        queued.filter(event__tenant_id=event.tenant_id, event__aggregate_id=event.aggregate_id).values_list(
            "event_id", flat=True
        )
    )
    events = OutboxEvent.objects.for_tenant(event.tenant_id).filter(pk__in=keys)
    events.update(published_at=None, attempts=0, parked_at=DbNow())
    events.filter(pk=event.id).update(attempts=MAX_ATTEMPTS, last_error=error)
    # Also those that the dispatcher has not published yet, and one that an operator has parked.
    _filter_unpublished(*event.aggregate).filter(pk__gt=event.id).update(attempts=0, parked_at=DbNow())
    queued.filter(event_id__in=keys).delete()


@transaction.atomic
def _resolve(key: int, *, skip: bool) -> bool:
    event = list_parked_events().filter(pk=key).first()
    if event is None:
        return False
    _lock_partition(event.partition)
    parked = list_parked_events().filter(pk=key)
    # The dispatcher may have been faster; then there is nothing left to do.
    resolved = parked.update(published_at=DbNow()) if skip else parked.update(attempts=0, parked_at=None)
    if resolved:
        held = _filter_unpublished(event.tenant_id, event.aggregate_id).filter(parked_at__isnull=False)
        held.update(parked_at=None)
    return bool(resolved)


def _lock_partition(partition: int) -> None:
    # The dispatcher's fence takes a share lock on this row: it cannot park another event of the aggregate meanwhile.
    list(OutboxPartition.objects.select_for_update().filter(pk=partition))


def _revoke_partition(partition: int) -> None:
    # The dispatcher may be publishing the event now. Without its lease it marks nothing as published, which would leave
    # events held behind a parked one that no longer exists. It claims the partition again within seconds.
    _lock_partition(partition)
    release_leases(OutboxPartition.objects.filter(pk=partition))


def _filter_unpublished(tenant_id: UUID, aggregate_id: UUID) -> QuerySet[OutboxEvent]:
    return OutboxEvent.objects.for_tenant(tenant_id).filter(aggregate_id=aggregate_id, published_at=None)

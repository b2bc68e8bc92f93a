"""Slots: the rows that clusters share. Each has two independent halves, a ticket and the lease of a role.

A *ticket* permits one slice. Consuming it issues the next one in the same transaction, so a chain of slices can
neither fork nor stop, and a task that is delivered twice does nothing the second time.

A *role lease* assigns a role to a process, whichever chain its slices come from: the engine's attempts in flight
live in its process. Another process may acquire the role once the lease has been released or has expired.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from uuid import UUID

from django.conf import settings
from django.db import DatabaseError, InterfaceError, connection, transaction
from django.db.models import F, Q, QuerySet
from django_q.conf import Conf

from eventservice.db.leases import CLOCK_MARGIN, shorten_future_leases
from eventservice.db.now import DbNow, render_now
from eventservice.kernel.env import CLUSTER_NAME, CLUSTER_NAME_RULE
from eventservice.runtime.models import Slot

ROLE_LEASE = timedelta(seconds=8)
# By how much the database's clock may run faster than this process before it is considered set forward.
MAX_DRIFT_SECONDS = 2.0

EnqueueSlice = Callable[[str, int], object]


def cluster_name() -> str:
    return str(settings.Q_CLUSTER["cluster_name"])


def rename_cluster(name: str) -> None:
    """Give the cluster of this process another name than the settings do. Call it before the queue is used.

    Raise ValueError if the name breaks the rule for names.
    """
    if CLUSTER_NAME.fullmatch(name) is None:
        raise ValueError(f"{name!r} is no name of a cluster: expected {CLUSTER_NAME_RULE}")
    # django-q2 reads its copy whenever it uses the queue.
    settings.Q_CLUSTER["cluster_name"] = Conf.CLUSTER_NAME = name


def slot_name(role: str) -> str:
    return f"{cluster_name()}/{role}"


def filter_slots(roles: Iterable[str]) -> QuerySet[Slot]:
    """Select the slots of this cluster. Those of another cluster belong to another queue."""
    return Slot.objects.filter(name__in=[slot_name(role) for role in roles])


def consume_ticket(slot: str, ticket: int, enqueue: EnqueueSlice) -> bool:
    """Consume the ticket and enqueue its successor. Return False if the ticket is void."""
    with transaction.atomic():
        consumed = Slot.objects.filter(name=slot, ticket=ticket).update(
            ticket=F("ticket") + 1, taken_at=DbNow()
        )
        if consumed:
            enqueue(slot, ticket + 1)
    return bool(consumed)


def find_stalled_chains(roles: Iterable[str], pause: timedelta) -> set[tuple[str, int]]:
    """Return the slots of this cluster, with their tickets, whose last ticket was consumed longer than that ago.

    Or in the future: then the clock was set back.
    """
    stalled = Q(taken_at__lt=DbNow(-pause)) | Q(taken_at__gt=DbNow(CLOCK_MARGIN))
    return set(filter_slots(roles).filter(stalled).values_list("name", "ticket"))


def restart_chain(slot: str, enqueue: EnqueueSlice) -> None:
    """Issue a fresh ticket and enqueue its slice. Every ticket that was issued before is void."""
    with transaction.atomic():
        Slot.objects.filter(name=slot).update(ticket=F("ticket") + 1, taken_at=DbNow())
        enqueue(slot, Slot.objects.get(name=slot).ticket)


class RoleLease:
    """The role lease that one process holds, if any."""

    def __init__(self, owner_id: UUID) -> None:
        self.owner_id = owner_id
        self.slot: str | None = None
        self._respect_expired_until = 0.0
        # When the lease of each slot ended in this process's time, as it was last seen.
        self._ends_at: dict[str, float] = {}

    def acquire(self, slot: str) -> bool:
        """Acquire or renew the lease of the slot's role. Return False if another process holds it."""
        try:
            acquired = (slot == self.slot and self._renew(slot)) or self._acquire_free(slot)
        except (DatabaseError, InterfaceError):
            # The holder could not renew its lease either: it may do so first when the database is back.
            self._respect_expired_leases()
            raise
        self.slot = slot if acquired else None
        if not acquired:
            shorten_future_leases(Slot.objects.filter(name=slot), ROLE_LEASE)
        return acquired

    def _renew(self, slot: str) -> bool:
        # Raw SQL, because every worker does this every few seconds: through the ORM it took three times as long.
        end, values = render_now(ROLE_LEASE)
        sql = f"UPDATE cluster_slots SET lease_until = {end} WHERE name = %s AND owner_id = %s"
        with connection.cursor() as cursor:
            cursor.execute(sql, [*values, slot, self.owner_id.hex])
            return bool(cursor.rowcount)

    def _acquire_free(self, slot: str) -> bool:
        if slot != self.slot:
            self._notice_clock_set_forward(slot)
        acquired = Slot.objects.filter(self._is_available(), name=slot).update(
            owner_id=self.owner_id, lease_until=DbNow(ROLE_LEASE)
        )
        return bool(acquired)

    def _notice_clock_set_forward(self, slot: str) -> None:
        """Leave a lease that expired because the clock was set forward to its holder, who had no time to renew it.

        In this process's time, the end of a lease never comes nearer than it was.
        """
        leased = Slot.objects.filter(name=slot, owner_id__isnull=False, lease_until__isnull=False)
        for lease_until, now in leased.values_list("lease_until", DbNow()):
            ends_at = time.monotonic() + (lease_until - now).total_seconds()
            if ends_at < self._ends_at.get(slot, ends_at) - MAX_DRIFT_SECONDS:
                self._respect_expired_leases()
            self._ends_at[slot] = ends_at

    def _respect_expired_leases(self) -> None:
        self._respect_expired_until = time.monotonic() + ROLE_LEASE.total_seconds()

    def _is_available(self) -> Q:
        available = Q(owner_id=None) | Q(owner_id=self.owner_id)
        if time.monotonic() >= self._respect_expired_until:
            available |= Q(lease_until__lt=DbNow())
        return available

    def release(self, *, crashed: bool = False) -> None:
        """Give the role back. After a crash of the cluster, the end of the lease is kept, by which operators see it."""
        slot, self.slot = self.slot, None
        if slot is not None:
            Slot.objects.filter(name=slot, owner_id=self.owner_id).update(
                owner_id=None, lease_until=DbNow() if crashed else None
            )

"""Versioned leases on shards and partitions, by the database's clock.

A claim raises the version. An owner that holds an older version has lost the lease, even if it does not know yet. The
rows are the ownership records of the spec (version, owner, claimed at, updated at, metadata) and the time at which the
lease ends.
"""

from __future__ import annotations

import hashlib
import os
import socket
import uuid
from collections.abc import Collection, Iterable
from datetime import timedelta
from typing import Any

from django.db import connection, models, transaction
from django.db.models import F, Q, QuerySet

from eventservice.db.dialects import get_dialect
from eventservice.db.now import DbNow, render_now
from eventservice.db.sql import placeholders
from eventservice.kernel.version import get_version


class Lease(models.Model):
    version = models.BigIntegerField(default=0)
    owner_id = models.UUIDField(null=True)
    claimed_at = models.DateTimeField(null=True)
    lease_until = models.DateTimeField(null=True)
    # When the lease was last claimed, renewed, released or taken away.
    updated_at = models.DateTimeField(null=True)
    metadata = models.JSONField(default=dict)

    class Meta:
        abstract = True


# A lease that ends this much later than its length allows was written before the database's clock was set back.
CLOCK_MARGIN = timedelta(seconds=5)


def shorten_future_leases(rows: QuerySet[Any], length: timedelta, max_length: timedelta | None = None) -> int:
    """Shorten the leases that end later than any lease can, to this length. Return how many there were.

    They are not taken away: the owner may be alive, and renews them in time. If it is not, they expire after the usual
    time, and not after however long the clock was set back. `max_length` is the longest that a lease may have.
    """
    ahead = rows.filter(lease_until__gt=DbNow((max_length or length) + CLOCK_MARGIN))
    return ahead.update(lease_until=DbNow(length)) if ahead.exists() else 0


def release_leases(rows: QuerySet[Any]) -> None:
    """Take these leases from their owners, which notice it by the version."""
    rows.update(version=F("version") + 1, owner_id=None, lease_until=None, updated_at=DbNow())


def build_metadata(owner_id: uuid.UUID) -> dict[str, object]:
    """Describe the owner of a lease: the process, and the version of its code."""
    return {
        "nodeId": str(owner_id),
        "hostname": socket.gethostname(),
        "processId": os.getpid(),
        "serviceVersion": get_version(),
    }


class Fenced(Exception):
    """Raised when a writer has lost its leases: its transaction must not commit."""


class Leases:
    """One owner's leases on the rows of a table. Every write is guarded by the version that was read."""

    def __init__(
        self,
        model: type[Any],
        owner_id: uuid.UUID,
        length: timedelta,
    ):
        self.model = model
        self.owner_id = owner_id
        self.length = length
        self.held: dict[int, int] = {}

    def claim(self, key: int) -> bool:
        """Take the lease if it is free or has expired. Return False if another owner has it."""
        free = Q(owner_id=None) | Q(lease_until__lt=DbNow())
        seen = self.model.objects.filter(free, pk=key).values_list("version", flat=True).first()
        if seen is None:
            return False
        won = self.model.objects.filter(free, pk=key, version=seen).update(
            version=F("version") + 1,
            owner_id=self.owner_id,
            claimed_at=DbNow(),
            lease_until=DbNow(self.length),
            updated_at=DbNow(),
            metadata=build_metadata(self.owner_id),
        )
        if won:
            self.held[key] = seen + 1
        return bool(won)

    def renew(self) -> set[int]:
        """Extend all leases, and return the keys of those that another owner has taken.

        The rows decide what is held. A release or a claim that failed halfway is corrected here. Leases of other owners
        from before the clock was set back are shortened.
        """
        with transaction.atomic():
            still = self._extend()
        shorten_future_leases(self.model.objects.all(), self.length)
        lost = {key for key, version in self.held.items() if still.get(key) != version}
        self.held = still
        return lost

    def _extend(self) -> dict[int, int]:
        """Extend all leases of this owner. Return the versions by the keys.

        Raw SQL, because an idle dispatcher does this every three seconds: through the ORM it took half as long again.
        """
        table, column = self.model._meta.db_table, self.model._meta.pk.column
        end, values = render_now(self.length)
        now, more = render_now()
        with connection.cursor() as cursor:
            cursor.execute(
                f"UPDATE {table} SET lease_until = {end}, updated_at = {now} WHERE owner_id = %s",
                [*values, *more, self.owner_id.hex],
            )
            cursor.execute(f"SELECT {column}, version FROM {table} WHERE owner_id = %s", [self.owner_id.hex])
            return dict(cursor.fetchall())

    def release(self, keys: Iterable[int]) -> None:
        keys = [key for key in keys if key in self.held]
        if not keys:
            return
        release_leases(self.model.objects.filter(pk__in=keys, owner_id=self.owner_id))
        for key in keys:
            del self.held[key]

    def fence(self, keys: Collection[int]) -> None:
        """Lock these leases until the writer's transaction ends, or raise Fenced if one of them is lost.

        A plain SELECT is not enough: a claim could commit between it and the writes. The share lock makes the claim
        wait, and shows one that has already committed. A transaction on SQLite is the only writer anyway.
        """
        versions = lock_versions(self.model, keys)
        if any(versions.get(key) != self.held.get(key, -1) for key in keys):
            raise Fenced


def lock_versions(model: type[Lease], keys: Collection[int]) -> dict[int, int]:
    if not keys:
        return {}
    table, column = model._meta.db_table, model._meta.pk.column
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT {column}, version FROM {table} WHERE {column} IN ({placeholders(keys)}) ORDER BY 1 {get_dialect().locks.for_share}",
            [*keys],
        )
        return dict(cursor.fetchall())


def pick_share(keys: Collection[int], owner: uuid.UUID, live: Collection[uuid.UUID]) -> set[int]:
    """Return the keys that belong to `owner` among the live owners.

    Rendezvous hashing moves few keys when an owner joins or leaves.
    """

    def weight(node: uuid.UUID, key: int) -> bytes:
        return hashlib.blake2b(node.bytes + key.to_bytes(4, "big"), digest_size=8).digest()

    return {key for key in keys if max(live, key=lambda node: weight(node, key)) == owner}

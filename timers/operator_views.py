"""Reads for operators: which nodes run, and who owns which shards. The timers' backlog is in timers.backlog."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count, Max, Min

from timers.models import Node, TimerShard


@dataclass(frozen=True, slots=True)
class Ownership:
    """How many shards one owner has. An `owner_id` of None stands for shards without an owner."""

    owner_id: uuid.UUID | None
    shards: int
    first_lease_ends: datetime | None
    last_claimed_at: datetime | None
    last_updated_at: datetime | None


def list_shards(after: int, limit: int) -> Sequence[TimerShard]:
    return list(TimerShard.objects.filter(shard_id__gt=after).order_by("shard_id")[:limit])


def list_nodes() -> Sequence[Node]:
    return list(Node.objects.order_by("started_at", "owner_id"))


def count_shards_by_owner() -> dict[uuid.UUID | None, int]:
    return dict(TimerShard.objects.order_by().values_list("owner_id").annotate(Count("pk")))


def list_ownerships() -> list[Ownership]:
    """Return the shards of each owner: first those without an owner, then the owner with the most."""
    groups = TimerShard.objects.order_by().values_list("owner_id")
    found = groups.annotate(Count("pk"), Min("lease_until"), Max("claimed_at"), Max("updated_at"))
    return sorted(
        (Ownership(*group) for group in found), key=lambda one: (one.owner_id is not None, -one.shards)
    )

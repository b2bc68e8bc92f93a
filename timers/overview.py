"""Who runs, and who owns what: for operators."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from django.db.models import Count

from timers.models import Node, TimerShard


def shards(after: int, limit: int) -> Sequence[TimerShard]:
    return list(TimerShard.objects.filter(shard_id__gt=after).order_by("shard_id")[:limit])


def nodes() -> Sequence[Node]:
    return list(Node.objects.order_by("started_at", "owner_id"))


def shards_by_owner() -> dict[uuid.UUID | None, int]:
    return dict(TimerShard.objects.order_by().values_list("owner_id").annotate(Count("pk")))

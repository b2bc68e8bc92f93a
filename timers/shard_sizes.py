"""How many timers wait in each shard, so that operators notice one that grows too large.

Counting a shard reads its part of the index, so a million timers take a fraction of a second. The cluster counts them once
a minute, a few shards at a time, and pages and metrics read what it stored.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple

from django.db import DatabaseError
from django.db.models import Avg, Count, Q

from eventservice.db.bulk import update_rows
from eventservice.db.now import DbNow, db_now
from eventservice.kernel.logging import get_logger
from timers.models import ShardSize, TimerShard
from timers.persistence import timer_persistence

log = get_logger(__name__)

SHARDS_AT_ONCE = 16
# The job runs each minute, in each cluster.
MIN_INTERVAL = timedelta(seconds=50)
# The advice of docs/timers.md for the number of shards of a namespace.
MAX_ADVISED_TIMERS = 25_000


class ShardSizes(NamedTuple):
    """The largest shard, and the average of all. `largest_shard` is None while nothing has been counted."""

    largest_shard: int | None = None
    max_timers: int = 0
    mean_timers: float = 0.0
    above_advice: int = 0


def measure_shard_sizes(seconds: float) -> None:
    """Count the timers of shards, those first that were counted longest ago, until the time is over."""
    deadline = time.monotonic() + seconds
    shards = _list_shards_to_count()
    for start in range(0, len(shards), SHARDS_AT_ONCE):
        try:
            _count(shards[start : start + SHARDS_AT_ONCE])
        except DatabaseError:
            log.exception("shard_sizes_not_counted")
            return
        # Checked afterwards: a round always does some work, however short its time is.
        if time.monotonic() >= deadline:
            return


def _list_shards_to_count() -> list[int]:
    """Return the shards that were not counted lately: those that never were, and then the oldest count first."""
    shards = set(TimerShard.objects.values_list("shard_id", flat=True))
    missing = shards - set(ShardSize.objects.values_list("shard_id", flat=True))
    ShardSize.objects.bulk_create(
        [ShardSize(shard_id=shard) for shard in sorted(missing)], ignore_conflicts=True, batch_size=500
    )
    counted = ShardSize.objects.filter(counted_at__lte=DbNow(-MIN_INTERVAL)).order_by(
        "counted_at", "shard_id"
    )
    never = ShardSize.objects.filter(counted_at=None).order_by("shard_id")
    return [*never.values_list("shard_id", flat=True), *counted.values_list("shard_id", flat=True)]


def _count(shards: Sequence[int]) -> None:
    found = timer_persistence.count_scheduled(shards)
    now = db_now()
    update_rows(
        ShardSize,
        "scheduled = {scheduled}, counted_at = {counted_at}",
        "shard_id = {shard_id}",
        [(found.get(shard, 0), now, shard) for shard in shards],
    )


def get_shard_sizes() -> ShardSizes:
    """Return what was counted last."""
    counted = ShardSize.objects.filter(counted_at__isnull=False)
    largest = counted.order_by("-scheduled", "shard_id").first()
    if largest is None:
        return ShardSizes()
    found = counted.aggregate(
        mean=Avg("scheduled"), above=Count("pk", filter=Q(scheduled__gt=MAX_ADVISED_TIMERS))
    )
    return ShardSizes(largest.shard_id, largest.scheduled, float(found["mean"]), found["above"])


def list_shard_sizes(shards: Sequence[int]) -> dict[int, int]:
    """Return how many timers these shards had when they were counted. Shards that were never counted are missing."""
    counted = ShardSize.objects.filter(shard_id__in=shards, counted_at__isnull=False)
    return dict(counted.values_list("shard_id", "scheduled"))

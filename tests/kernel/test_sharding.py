"""A timer's shard is the same on every machine and in every release: these vectors may never change."""

from __future__ import annotations

import uuid
from collections import Counter

import pytest

from eventservice.kernel.sharding import MAX_SHARDS, compute_shard

TENANT = uuid.UUID("01900000-0000-7000-8000-000000000001")
OTHER = uuid.UUID("01900000-0000-7000-8000-000000000002")
VECTORS: list[tuple[uuid.UUID, str, int, int]] = [
    (TENANT, "", 16, 4),
    (TENANT, "", 4096, 1508),
    (TENANT, "order-1", 16, 9),
    (TENANT, "order-1", 4096, 3033),
    (TENANT, "Ünïcode ☕", 16, 1),
    (TENANT, "Ünïcode ☕", 4096, 3105),
    (TENANT, "01900000-0000-7000-8000-0000000000ff", 16, 12),
    (TENANT, "01900000-0000-7000-8000-0000000000ff", 4096, 76),
    (OTHER, "", 16, 14),
    (OTHER, "", 4096, 1118),
    (OTHER, "order-1", 16, 10),
    (OTHER, "order-1", 4096, 3130),
    (OTHER, "Ünïcode ☕", 16, 10),
    (OTHER, "Ünïcode ☕", 4096, 2554),
    (OTHER, "01900000-0000-7000-8000-0000000000ff", 16, 12),
    (OTHER, "01900000-0000-7000-8000-0000000000ff", 4096, 3884),
]


@pytest.mark.parametrize(("tenant_id", "key", "num_shards", "shard"), VECTORS)
def test_known_timers_keep_their_shards(tenant_id: uuid.UUID, key: str, num_shards: int, shard: int) -> None:
    assert compute_shard(tenant_id, key, num_shards) == shard


def test_one_shard_holds_everything() -> None:
    assert {compute_shard(TENANT, str(n), 1) for n in range(100)} == {0}


@pytest.mark.parametrize("num_shards", [2, 16, 100, MAX_SHARDS])
def test_timers_spread_evenly(num_shards: int) -> None:
    per_shard = 64
    load = Counter(compute_shard(TENANT, f"order-{n}", num_shards) for n in range(per_shard * num_shards))
    assert set(load) == set(range(num_shards))
    assert max(load.values()) < 2 * per_shard


def test_the_same_key_of_two_tenants_can_be_in_different_shards() -> None:
    keys = [f"order-{n}" for n in range(50)]
    assert [compute_shard(TENANT, key, 16) for key in keys] != [compute_shard(OTHER, key, 16) for key in keys]

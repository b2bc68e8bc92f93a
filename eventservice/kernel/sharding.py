"""The shard of a timer, and the partition of an aggregate's events: the same on every machine, for ever."""

import uuid
import zlib

MAX_SHARDS = 4096


def compute_shard(tenant_id: uuid.UUID, timer_key: str, num_shards: int) -> int:
    return zlib.crc32(tenant_id.bytes + timer_key.encode()) % num_shards

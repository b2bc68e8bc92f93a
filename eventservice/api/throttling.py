"""How often a tenant may ask. Each process counts for itself: with n of them a tenant has up to n times its rate."""

from __future__ import annotations

import math
import time
import uuid
from dataclasses import dataclass

from eventservice.api.problems import Problem
from eventservice.tenants.directory import TenantProfile

WINDOW_SECONDS = 60.0
MOST_BUCKETS = 10_000


@dataclass(slots=True)
class Bucket:
    """It fills evenly up to a minute's worth, and each request takes one."""

    tokens: float
    filled_at: float

    def take(self, per_minute: int, now: float) -> bool:
        gained = (now - self.filled_at) * per_minute / WINDOW_SECONDS
        self.tokens = min(float(per_minute), self.tokens + gained)
        self.filled_at = now
        if self.tokens < 1.0:
            return False
        self.tokens -= 1.0
        return True


_buckets: dict[tuple[uuid.UUID, str], Bucket] = {}


def take_turn(tenant: TenantProfile, policy: str) -> dict[str, str]:
    """The headers that tell what is left; raises Refusal when nothing is. Each policy has a bucket of its own."""
    now = time.monotonic()
    rate = tenant.requests_per_minute
    bucket = _buckets.get((tenant.tenant_id, policy))
    if bucket is None:
        if len(_buckets) >= MOST_BUCKETS:
            _buckets.clear()
        bucket = _buckets[tenant.tenant_id, policy] = Bucket(rate, now)
    taken = bucket.take(rate, now)
    headers = {
        "RateLimit-Policy": f'"{policy}";q={rate};w={WINDOW_SECONDS:.0f}',
        "RateLimit": f'"{policy}";r={max(0, math.floor(bucket.tokens))};t={_seconds_until_full(bucket, rate)}',
    }
    if not taken:
        wait = math.ceil((1.0 - bucket.tokens) * WINDOW_SECONDS / max(1, rate))
        refused = f"This tenant may ask {rate} times a minute."
        raise Problem(429, "too_many_requests", refused, headers={**headers, "Retry-After": str(wait)})
    return headers


def _seconds_until_full(bucket: Bucket, rate: int) -> int:
    return math.ceil((rate - bucket.tokens) * WINDOW_SECONDS / max(1, rate))


def forget_turns() -> None:
    _buckets.clear()

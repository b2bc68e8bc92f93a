"""The rate limits of a tenant, in requests and in bytes. Each process counts for itself: n processes together allow up to
n times the rate."""

from __future__ import annotations

import math
import time
import uuid
from dataclasses import dataclass
from typing import Any

from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle

from eventservice.api.authentication import Principal
from eventservice.api.problems import Problem
from eventservice.tenants.directory import get_profile
from eventservice.tenants.models import LimitCode
from eventservice.tenants.refusals import note_refusal

WINDOW_SECONDS = 60.0
MAX_BUCKETS = 10_000


@dataclass(slots=True)
class Bucket:
    """A token bucket. It refills evenly, up to the tokens of one minute, and each request takes one, or one per byte."""

    tokens: float
    filled_at: float

    def take(self, per_minute: int, now: float, amount: int = 1) -> bool:
        gained = (now - self.filled_at) * per_minute / WINDOW_SECONDS
        self.tokens = min(float(per_minute), self.tokens + gained)
        self.filled_at = now
        if self.tokens < amount:
            return False
        self.tokens -= amount
        return True

    def seconds_until(self, tokens: float, per_minute: int) -> int:
        return math.ceil((tokens - self.tokens) * WINDOW_SECONDS / max(1, per_minute))


_buckets: dict[tuple[uuid.UUID, str], Bucket] = {}


def clear_buckets() -> None:
    _buckets.clear()


class TenantRateThrottle(BaseThrottle):
    """Limits the requests of a tenant's keys together. Operators, who set the rate, are not limited.

    A view names its policy. Each policy has a bucket of its own.
    """

    _wait = 0

    def allow_request(self, request: Request, view: Any) -> bool:
        principal: object = request.user
        if not isinstance(principal, Principal) or principal.tenant_id is None:
            return True
        rate, policy = get_profile(principal.tenant_id).requests_per_minute, view.rate_policy
        bucket = _find_bucket((principal.tenant_id, policy), rate)
        is_allowed = bucket.take(rate, time.monotonic())
        view.rate_headers = {
            "RateLimit-Policy": f'"{policy}";q={rate};w={WINDOW_SECONDS:.0f}',
            "RateLimit": f'"{policy}";r={max(0, math.floor(bucket.tokens))};t={bucket.seconds_until(rate, rate)}',
        }
        self._wait = bucket.seconds_until(1.0, rate)
        if is_allowed:
            _take_bytes(principal.tenant_id, policy, request)
        else:
            note_refusal(principal.tenant_id, LimitCode.REQUESTS)
        return is_allowed

    def wait(self) -> int:
        return self._wait


def _take_bytes(tenant_id: uuid.UUID, policy: str, request: Request) -> None:
    """Count the body, which has not been read yet. Raise Problem if it exceeds the tenant's bytes per minute."""
    length = request.META.get("CONTENT_LENGTH") or "0"
    size = int(length[:20]) if length.isdecimal() else 0
    if not size:
        return
    rate = get_profile(tenant_id).bytes_per_minute
    limit = f"This tenant is limited to {rate} bytes per minute"
    if size > rate:
        note_refusal(tenant_id, LimitCode.BYTES)
        raise Problem(413, "too_large", f"{limit}, and this body has {size}.")
    bucket = _find_bucket((tenant_id, f"{policy} bytes"), rate)
    if not bucket.take(rate, time.monotonic(), size):
        note_refusal(tenant_id, LimitCode.BYTES)
        wait = {"Retry-After": str(bucket.seconds_until(size, rate))}
        raise Problem(429, "too_many_bytes", f"{limit}.", headers=wait)


def charge_bytes(principal: Principal, size: int) -> None:
    """Count bytes that a request without a body has stored. Later requests may have to wait for them."""
    if principal.tenant_id is not None and size:
        rate = get_profile(principal.tenant_id).bytes_per_minute
        bucket = _find_bucket((principal.tenant_id, "tenant bytes"), rate)
        bucket.take(rate, time.monotonic(), 0)
        bucket.tokens -= size


def _find_bucket(key: tuple[uuid.UUID, str], rate: int) -> Bucket:
    bucket = _buckets.get(key)
    if bucket is None:
        if len(_buckets) >= MAX_BUCKETS:
            _buckets.clear()
        bucket = _buckets[key] = Bucket(rate, time.monotonic())
    return bucket

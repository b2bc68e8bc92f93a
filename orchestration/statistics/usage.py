"""The use of a tenant's limits now, for the API, the console and the commands."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from eventservice.db.bounded_count import count_capped
from eventservice.kernel.ttl_cache import TTLCache
from eventservice.tenants.models import LimitRefusal, Tenant
from eventservice.tenants.refusals import list_refusals
from orchestration.models import ServiceCall
from orchestration.states import Status

# A count reads an index as far as this. It is repeated when its result is so old.
MAX_COUNTED_CALLS = 1_000_000
CACHE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class TenantUsage:
    """A tenant with what it uses of its limits. Counts above MAX_COUNTED_CALLS are one more than that."""

    tenant: Tenant
    in_flight: int
    pending: int
    refusals: Sequence[LimitRefusal]

    @property
    def stored_bytes(self) -> int:
        """The approximate number of stored bytes, as last measured."""
        return self.tenant.stored_bytes


_counts: TTLCache[uuid.UUID, tuple[int, int]] = TTLCache(CACHE_SECONDS)


def read_usage(tenant: Tenant) -> TenantUsage:
    """Return what the tenant uses. The counts may be CACHE_SECONDS old."""
    in_flight, pending = _counts.get(tenant.tenant_id, lambda: _count(tenant.tenant_id))
    return TenantUsage(tenant, in_flight, pending, list_refusals(tenant.tenant_id))


def _count(tenant_id: uuid.UUID) -> tuple[int, int]:
    calls = ServiceCall.objects.for_tenant(tenant_id)
    running, scheduled = (
        count_capped(calls.filter(status=status), max_counted=MAX_COUNTED_CALLS)
        for status in (Status.RUNNING, Status.SCHEDULED)
    )
    return running, scheduled

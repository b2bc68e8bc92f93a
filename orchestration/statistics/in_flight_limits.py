"""Overdue calls that wait because their tenant, or a host of theirs, is at the tenant's in-flight limit."""

from __future__ import annotations

import uuid
from collections import Counter
from dataclasses import dataclass
from datetime import datetime

from eventservice.tenants.models import Tenant
from orchestration.engine.capacity import Room
from orchestration.models import ServiceCall
from orchestration.states import Status
from orchestration.statistics.live_counts import list_overdue_tenants

# Of so many tenants with overdue calls the limits are looked at, and of each so many running and overdue calls.
MAX_TENANTS = 20
MAX_RUNNING_READ = 10_000
MAX_OVERDUE_READ = 500


@dataclass(frozen=True, slots=True)
class HeldBackTenant:
    """A tenant with overdue calls that is at its in-flight limit, or a host of which has its share of it."""

    tenant: Tenant
    limit: int  # of all engines together
    running: int
    host: str  # the one with the most overdue calls; empty if the tenant itself is at the limit
    host_running: int


def list_held_back(tenant_id: uuid.UUID | None, due_before: datetime, engines: int) -> list[HeldBackTenant]:
    """Return those whose calls have been due since before then and are held back by a limit, of one tenant or of all.

    Each engine counts what it has in flight itself, so the limits of all engines are taken together.
    """
    overdue = list_overdue_tenants(due_before) if tenant_id is None else [tenant_id]
    tenants = Tenant.objects.filter(pk__in=overdue[:MAX_TENANTS]).order_by("name")
    found = (_find_limit(tenant, due_before, max(1, engines)) for tenant in tenants)
    return [one for one in found if one]


def _find_limit(tenant: Tenant, due_before: datetime, engines: int) -> HeldBackTenant | None:
    calls = ServiceCall.objects.for_tenant(tenant.tenant_id).order_by()
    running = calls.filter(status=Status.RUNNING).values_list("host", flat=True)
    by_host = Counter(running[:MAX_RUNNING_READ])
    limit, total = engines * tenant.max_in_flight, by_host.total()
    waiting = calls.filter(status=Status.SCHEDULED, due_at__lt=due_before).order_by("due_at")
    overdue = Counter(waiting.values_list("host", flat=True)[:MAX_OVERDUE_READ])
    if overdue and total >= limit:
        return HeldBackTenant(tenant, limit, total, "", 0)
    room = Room(limit - total, by_host)
    for host, _ in overdue.most_common():
        if not room.has(host):
            return HeldBackTenant(tenant, limit, total, host, by_host[host])
    return None

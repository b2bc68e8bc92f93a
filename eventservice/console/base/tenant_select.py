"""The options of the tenant selects."""

from __future__ import annotations

import uuid
from typing import Any

from eventservice.tenants.models import Tenant

MAX_OPTIONS = 500


def list_tenant_options(chosen: uuid.UUID | None, **which: Any) -> list[Tenant]:
    """Return the first tenants by name, and the chosen one: without it, a select would fall back to All."""
    tenants = Tenant.objects.filter(**which)
    offered = list(tenants.order_by("name")[:MAX_OPTIONS])
    if chosen is None or any(tenant.pk == chosen for tenant in offered):
        return offered
    return [*offered, *tenants.filter(pk=chosen)]

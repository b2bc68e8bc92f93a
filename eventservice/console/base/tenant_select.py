"""What the selects of the pages offer."""

from __future__ import annotations

import uuid
from typing import Any

from eventservice.tenants.models import Tenant

MAX_OPTIONS = 500


def list_tenant_options(chosen: uuid.UUID | None, **which: Any) -> list[Tenant]:
    """The first ones by name, and the chosen one: a select that lacked it would say All, and ask for that next."""
    tenants = Tenant.objects.filter(**which)
    offered = list(tenants.order_by("name")[:MAX_OPTIONS])
    if chosen is None or any(tenant.pk == chosen for tenant in offered):
        return offered
    return [*offered, *tenants.filter(pk=chosen)]

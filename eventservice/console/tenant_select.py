"""What the selects of the pages offer."""

from __future__ import annotations

import uuid
from typing import Any

from eventservice.tenants.models import Tenant

MOST_OFFERED = 500


def tenants_to_choose(chosen: uuid.UUID | None, **which: Any) -> list[Tenant]:
    """The first ones by name, and the chosen one: a select that lacked it would say All, and ask for that next."""
    tenants = Tenant.objects.filter(**which)
    offered = list(tenants.order_by("name")[:MOST_OFFERED])
    if chosen is None or any(tenant.pk == chosen for tenant in offered):
        return offered
    return [*offered, *tenants.filter(pk=chosen)]

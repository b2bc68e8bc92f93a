"""What the selects of the pages offer."""

from __future__ import annotations

import uuid

from eventservice.tenants.directory import list_tenants
from eventservice.tenants.models import Tenant

MOST_OFFERED = 500


def tenants_to_choose(chosen: uuid.UUID | None) -> list[Tenant]:
    """The first ones by name, and the chosen one: a select that lacked it would say All, and ask for that next."""
    offered = list_tenants(MOST_OFFERED)
    if chosen is None or any(tenant.pk == chosen for tenant in offered):
        return offered
    return [*offered, *Tenant.objects.filter(pk=chosen)]

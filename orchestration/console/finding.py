"""From the one id that somebody has, of a log line or of a report, to what it is the id of."""

from __future__ import annotations

import uuid

from django.urls import reverse

from orchestration.console.asked import Asked
from orchestration.selectors import CallFilter, Order, keys_of, statuses_of


class NotFoundByIt(Exception):
    """Why an id leads nowhere, for whoever looks for it."""


def place_of(sought: uuid.UUID, asked: Asked) -> str:
    """The address of the call with this id, or of the list of those with this correlation id.

    Each tenant that is asked for is looked through by its own indexes. But for the tenant, the filters have no say in
    which call an id is of. Raises NotFoundByIt.
    """
    tenants = [one.tenant_id for one in asked.wanted]
    calls = list(statuses_of([(tenant_id, sought) for tenant_id in tenants]))
    if len(calls) > 1:  # whoever submits a call may choose its id
        names = ", ".join(asked.tenants[tenant_id] for tenant_id, _ in calls)
        raise NotFoundByIt(f"Several tenants have a call with this id: choose one of {names}.")
    if calls:
        return reverse("console:call", args=calls[0])
    correlated = [CallFilter(tenant_id, correlation_id=sought) for tenant_id in tenants]
    if keys_of(correlated, Order(), 1):
        return asked.address(id=None, correlationId=str(sought))
    of_tenant = f" of {asked.tenants[asked.tenant]}" if asked.tenant else ""
    raise NotFoundByIt(f"No call{of_tenant} has this id or correlation id.")

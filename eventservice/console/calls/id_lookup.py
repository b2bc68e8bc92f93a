"""From the one id that somebody has, of a log line or of a report, to what it is the id of."""

from __future__ import annotations

import uuid

from django.urls import reverse

from eventservice.console.calls.list_query import Asked
from orchestration.queries.tenants_with_calls import tenants_with_id

MOST_NAMED = 20


class NotFoundByIt(Exception):
    """Why an id leads nowhere, for whoever looks for it."""


def place_of(sought: uuid.UUID, asked: Asked) -> str:
    """The address of the call with this id, or of the list of those with this correlation id.

    But for the tenant, the filters have no say in which call an id is of. Raises NotFoundByIt.
    """
    owners = tenants_with_id("service_call_id", sought, asked.tenant, MOST_NAMED)
    if len(owners) > 1:  # whoever submits a call may choose its id
        names = ", ".join(owners.values())
        raise NotFoundByIt(f"Several tenants have a call with this id: choose one of {names}.")
    for tenant_id in owners:
        return reverse("console:call", args=[tenant_id, sought])
    if tenants_with_id("correlation_id", sought, asked.tenant, 1):
        return asked.address(id=None, correlationId=str(sought))
    of_tenant = f" of {asked.tenants[asked.tenant]}" if asked.tenant else ""
    raise NotFoundByIt(f"No call{of_tenant} has this id or correlation id.")

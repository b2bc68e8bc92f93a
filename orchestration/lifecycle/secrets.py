"""Sample the encrypted headers of scheduled calls, to check that they can be decrypted."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

from eventservice.tenants.directory import list_tenant_ids
from orchestration.models import ServiceCall
from orchestration.states import Status


def sample_scheduled_secrets(limit: int) -> Iterator[tuple[str, str]]:
    """Yield what each secret is, and its stored form. The sample takes the calls of each tenant that are due first and
    last: they include the oldest, which are the first to be lost with an old key."""
    tenants = list_tenant_ids()
    each = max(1, limit // max(1, 2 * len(tenants)))
    for tenant_id in tenants:
        for service_call_id, headers in _read_first_and_last(tenant_id, each).items():
            for name, value in (headers or {}).items():
                if isinstance(value, dict):
                    yield f"header {name} of call {service_call_id}", value["encrypted"]


def _read_first_and_last(tenant_id: uuid.UUID, each: int) -> dict[uuid.UUID, dict[str, object] | None]:
    scheduled = ServiceCall.objects.for_tenant(tenant_id).filter(status=Status.SCHEDULED)
    headers = scheduled.values_list("service_call_id", "request_spec__headers")
    return {**dict(headers.order_by("due_at")[:each]), **dict(headers.order_by("-due_at")[:each])}

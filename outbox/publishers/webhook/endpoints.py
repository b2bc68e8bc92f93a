"""The endpoints of a tenant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.db.models import QuerySet

from eventservice.db.now import DbNow
from eventservice.kernel.errors import Conflict, NotFound
from eventservice.kernel.ids import new_id
from eventservice.kernel.secrets import Reencryption, encrypt
from eventservice.kernel.signing import generate_secret
from outbox.models import WebhookDelivery, WebhookEndpoint


def create_endpoint(
    tenant_id: UUID, url: str, event_types: Sequence[str] = (), *, endpoint_id: UUID | None = None
) -> tuple[WebhookEndpoint, str]:
    """The endpoint and its secret, which is shown this once. The caller has judged the URL."""
    secret = generate_secret()
    endpoint: WebhookEndpoint = WebhookEndpoint.objects.create(
        tenant_id=tenant_id,
        endpoint_id=endpoint_id or new_id(),
        url=url,
        secret=encrypt(secret),
        event_types=list(event_types),
        created_at=DbNow(),
    )
    return endpoint, secret


def update_endpoint(tenant_id: UUID, endpoint_id: UUID, **changes: Any) -> None:
    """Its `url`, `event_types` and `active`. What waits for one that is made active again is sent to it."""
    if "active" in changes:
        changes["disabled_reason"] = "" if changes["active"] else "an operator has disabled it"
    if changes and not _filter_endpoint(tenant_id, endpoint_id).update(**changes):
        raise NotFound("webhook endpoint")


def set_endpoint_active(tenant_id: UUID, endpoint_id: UUID, *, active: bool) -> None:
    """Refused where nothing would change: somebody else was faster."""
    if _filter_endpoint(tenant_id, endpoint_id).filter(active=active).exists():
        state = "active already" if active else "not active any more"
        raise Conflict("wrong_state", f"Nothing has been changed: the endpoint is {state}.")
    update_endpoint(tenant_id, endpoint_id, active=active)


def get_endpoint(endpoint_id: UUID) -> WebhookEndpoint:
    """Operators name one by its own id alone."""
    found: WebhookEndpoint | None = WebhookEndpoint.across_tenants.filter(endpoint_id=endpoint_id).first()
    if found is None:
        raise NotFound("webhook endpoint")
    return found


def check_endpoint_unused(tenant_id: UUID, endpoint_id: UUID) -> None:
    if WebhookDelivery.objects.for_tenant(tenant_id).filter(endpoint_id=endpoint_id)[:1].exists():
        raise Conflict("endpoint_used", "It has deliveries: make it inactive instead.")


def delete_endpoint(tenant_id: UUID, endpoint_id: UUID) -> None:
    """One to which nothing was ever to be delivered: with it the database deletes its deliveries."""
    check_endpoint_unused(tenant_id, endpoint_id)
    _filter_endpoint(tenant_id, endpoint_id).delete()


def reencrypt_endpoint_secrets(work: Reencryption) -> int:
    """How many were changed."""
    changed = 0
    endpoints: QuerySet[WebhookEndpoint] = WebhookEndpoint.across_tenants.all()
    for tenant_id, endpoint_id, stored in endpoints.values_list("tenant_id", "endpoint_id", "secret"):
        fresh = work.renewed(stored, f"secret of webhook endpoint {endpoint_id}")
        if fresh != stored:
            changed += _filter_endpoint(tenant_id, endpoint_id).filter(secret=stored).update(secret=fresh)
    return changed


def _filter_endpoint(tenant_id: UUID, endpoint_id: UUID) -> QuerySet[WebhookEndpoint]:
    endpoints: QuerySet[WebhookEndpoint] = WebhookEndpoint.objects.for_tenant(tenant_id)
    return endpoints.filter(endpoint_id=endpoint_id)

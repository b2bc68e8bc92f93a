"""The endpoints of a tenant."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from eventservice.kernel.ids import new_id
from eventservice.kernel.now import DbNow
from eventservice.kernel.secrets import encrypt
from outbox.models import WebhookEndpoint
from outbox.webhooks.signature import new_secret


def add_endpoint(tenant_id: UUID, url: str, event_types: Sequence[str] = ()) -> tuple[WebhookEndpoint, str]:
    """The endpoint and its secret, which is shown this once. The caller has judged the URL."""
    secret = new_secret()
    endpoint: WebhookEndpoint = WebhookEndpoint.objects.create(
        tenant_id=tenant_id,
        endpoint_id=new_id(),
        url=url,
        secret=encrypt(secret),
        event_types=list(event_types),
        created_at=DbNow(),
    )
    return endpoint, secret

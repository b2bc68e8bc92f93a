"""Creating, changing and removing webhook endpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict, Unpack
from uuid import UUID

from django.db.models import F, QuerySet, lookups

from eventservice.db.bulk import to_json
from eventservice.db.now import DbNow, db_now
from eventservice.db.sql import Unindexed
from eventservice.kernel.errors import Conflict, NotFound
from eventservice.kernel.ids import new_id
from eventservice.kernel.secrets import Reencryption, encrypt
from eventservice.kernel.signing import generate_secret
from outbox.envelope import Envelope
from outbox.models import AggregateType, WebhookDelivery, WebhookEndpoint

TEST_EVENT = "WebhookTest"
DELETED_REASON = "it is being deleted"
DELETION_BATCH = 1000


class EndpointChanges(TypedDict, total=False):
    url: str
    event_types: Sequence[str]
    active: bool


def create_endpoint(
    tenant_id: UUID, url: str, event_types: Sequence[str] = (), *, endpoint_id: UUID | None = None
) -> tuple[WebhookEndpoint, str]:
    """Create an endpoint. Return it with its secret, which is shown only now. The caller has validated the URL."""
    secret = generate_secret()
    endpoint = WebhookEndpoint.objects.create(
        tenant_id=tenant_id,
        endpoint_id=endpoint_id or new_id(),
        url=url,
        secret=encrypt(secret),
        event_types=list(event_types),
        created_at=DbNow(),
    )
    return endpoint, secret


def find_endpoint(tenant_id: UUID, endpoint_id: UUID) -> WebhookEndpoint | None:
    return _filter_endpoint(tenant_id, endpoint_id).first()


def get_endpoint(endpoint_id: UUID) -> WebhookEndpoint:
    """Return the endpoint of whichever tenant, for operators. Raise NotFound if there is none."""
    found = WebhookEndpoint.across_tenants.filter(endpoint_id=endpoint_id).first()
    if found is None:
        raise NotFound("webhook endpoint")
    return found


def update_endpoint(tenant_id: UUID, endpoint_id: UUID, **changes: Unpack[EndpointChanges]) -> None:
    """Change an endpoint. If it is enabled again, it is sent what waited for it."""
    values: dict[str, object] = {**changes}
    if "active" in changes:
        values["disabled_reason"] = "" if changes["active"] else "an operator has disabled it"
    if values and not _filter_endpoint(tenant_id, endpoint_id).update(**values):
        raise NotFound("webhook endpoint")


def set_endpoint_active(tenant_id: UUID, endpoint_id: UUID, *, active: bool) -> None:
    """Enable or disable an endpoint. Raise Conflict if someone else was faster, and nothing would change."""
    if _filter_endpoint(tenant_id, endpoint_id).filter(active=active).exists():
        state = "active already" if active else "not active any more"
        raise Conflict("wrong_state", f"Nothing has been changed: the endpoint is {state}.")
    update_endpoint(tenant_id, endpoint_id, active=active)


def delete_endpoint(tenant_id: UUID, endpoint_id: UUID) -> None:
    """Delete an endpoint with its deliveries. Raise NotFound if there is none.

    It is disabled first, so that it gets no further deliveries. Its deliveries are deleted in transactions of their own
    unless the caller has begun one, because there may be many. If this is interrupted, it can be repeated.
    """
    if not _filter_endpoint(tenant_id, endpoint_id).update(active=False, disabled_reason=DELETED_REASON):
        raise NotFound("webhook endpoint")
    deliveries = WebhookDelivery.objects.for_tenant(tenant_id)
    of_endpoint = select_deliveries(tenant_id, endpoint_id).order_by("delivery_id")
    while ids := list(of_endpoint.values_list("delivery_id", flat=True)[:DELETION_BATCH]):
        deliveries.filter(delivery_id__in=ids).delete()
    _filter_endpoint(tenant_id, endpoint_id).delete()


def get_active_endpoint(tenant_id: UUID, endpoint_id: UUID) -> WebhookEndpoint:
    """Return an endpoint to which requests may be sent. Raise NotFound, or Conflict if it is disabled."""
    endpoint = find_endpoint(tenant_id, endpoint_id)
    if endpoint is None:
        raise NotFound("webhook endpoint")
    if not endpoint.active:
        raise Conflict("wrong_state", "This endpoint is disabled. Enable it first.")
    return endpoint


def send_test_event(tenant_id: UUID, endpoint_id: UUID) -> UUID:
    """Queue a test event for an endpoint, whatever types it wants. Return the id of the delivery.

    It is signed, sent and retried like any event, and is about no call. Raise NotFound, or Conflict if the endpoint is
    disabled.
    """
    get_active_endpoint(tenant_id, endpoint_id)
    now, event_id, subject = db_now(), new_id(), new_id()
    event = Envelope(
        id=0, partition=0, attempts=0, event_id=event_id, tenant_id=tenant_id,
        aggregate_type=AggregateType.WEBHOOK_TEST.value, aggregate_id=subject, sequence=1,
        type=TEST_EVENT, time=now, correlation_id=event_id, causation_id=None,
        data=to_json({"message": "This is a test event. It is about no call."}),
    )  # fmt: skip
    delivery = WebhookDelivery.objects.create(
        tenant_id=tenant_id,
        delivery_id=new_id(),
        endpoint_id=endpoint_id,
        event_id=event_id,
        aggregate_id=subject,
        aggregate_seq=event.sequence,
        body=event.to_json(),
        next_attempt_at=now,
        created_at=now,
    )
    return delivery.delivery_id


def reencrypt_endpoint_secrets(work: Reencryption) -> int:
    """Encrypt the secrets with the newest key. Return how many were changed."""
    changed = 0
    endpoints = WebhookEndpoint.across_tenants.values_list("tenant_id", "endpoint_id", "secret")
    for tenant_id, endpoint_id, stored in endpoints:
        fresh = work.reencrypt(stored, f"secret of webhook endpoint {endpoint_id}")
        if fresh != stored:
            changed += _filter_endpoint(tenant_id, endpoint_id).filter(secret=stored).update(secret=fresh)
    return changed


def select_deliveries(tenant_id: UUID, endpoint_id: UUID) -> QuerySet[WebhookDelivery]:
    """Select the deliveries of an endpoint by the index of endpoints, for a walk in the order of their ids."""
    own_tenant = lookups.Exact(Unindexed(F("tenant_id")), tenant_id)
    return WebhookDelivery.across_tenants.filter(own_tenant, endpoint_id=endpoint_id)


def _filter_endpoint(tenant_id: UUID, endpoint_id: UUID) -> QuerySet[WebhookEndpoint]:
    return WebhookEndpoint.objects.for_tenant(tenant_id).filter(endpoint_id=endpoint_id)

"""Events for the tenants' webhook endpoints. Only deliveries are written here, so no endpoint holds up the outbox.

`outbox.publishers.webhook.deliverer` sends them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import transaction

from eventservice.db.bulk import insert_rows
from eventservice.db.now import db_now
from eventservice.kernel.ids import new_id
from outbox.envelope import Envelope
from outbox.models import DeliveryState, WebhookDelivery, WebhookEndpoint

COLUMNS = (
    "tenant_id", "delivery_id", "endpoint_id", "event_id", "aggregate_id", "aggregate_seq", "body", "state",
    "attempts", "next_attempt_at", "last_error", "created_at",
)  # fmt: skip


class WebhookPublisher:
    """Writes a pending delivery for each event and each active endpoint of its tenant that wants the event's type."""

    name = "webhook"

    def publish(self, events: Sequence[Envelope]) -> None:
        by_tenant: defaultdict[UUID, list[Envelope]] = defaultdict(list)
        for event in events:
            by_tenant[event.tenant_id].append(event)
        endpoints = WebhookEndpoint.across_tenants.filter(active=True)
        for tenant_id in set(endpoints.filter(tenant_id__in=by_tenant).values_list("tenant_id", flat=True)):
            _enqueue(tenant_id, by_tenant[tenant_id])


def add_deliveries(endpoint: WebhookEndpoint, events: Sequence[Envelope]) -> int:
    """Write pending deliveries of events of its tenant that the endpoint wants and has no delivery of. Return how many."""
    return _enqueue(endpoint.tenant_id, events, only=endpoint.endpoint_id)


@transaction.atomic
def _enqueue(tenant_id: UUID, events: Sequence[Envelope], only: UUID | None = None) -> int:
    """Write the deliveries that are missing to all active endpoints of the tenant, or only to one. Return how many."""
    # Lock the endpoints, as recording a result does. Otherwise the end of an aggregate's delivery could find no next
    # delivery to promote, while this transaction adds one that waits for it.
    endpoints = WebhookEndpoint.objects.for_tenant(tenant_id).filter(active=True).order_by("endpoint_id")
    if only is not None:
        endpoints = endpoints.filter(endpoint_id=only)
    subscribers = list(endpoints.select_for_update())
    deliveries = WebhookDelivery.objects.for_tenant(tenant_id)
    enqueued = deliveries.filter(event_id__in=[event.event_id for event in events])
    known = set(enqueued.values_list("endpoint_id", "event_id"))
    pending = deliveries.filter(
        state=DeliveryState.PENDING,
        endpoint_id__in=[endpoint.endpoint_id for endpoint in subscribers],
        aggregate_id__in={event.aggregate_id for event in events},
    )
    busy = set(pending.values_list("endpoint_id", "aggregate_id").distinct())
    now = db_now()
    return sum(
        insert_rows(WebhookDelivery, COLUMNS, _build_rows(endpoint, events, known, busy, now))
        for endpoint in subscribers
    )


def _build_rows(
    endpoint: WebhookEndpoint,
    events: Sequence[Envelope],
    known: set[tuple[UUID, UUID]],
    busy: set[tuple[UUID, UUID]],
    now: datetime,
) -> Iterable[tuple[Any, ...]]:
    """Build the deliveries that the endpoint does not have yet. Only the first of an aggregate is due.

    `known` has the endpoint and event of each delivery that exists, `busy` the endpoint and aggregate of each that is
    pending; the latter is extended.
    """
    for event in events:
        is_wanted = not endpoint.event_types or event.type in endpoint.event_types
        if not is_wanted or (endpoint.endpoint_id, event.event_id) in known:
            continue
        queue = endpoint.endpoint_id, event.aggregate_id
        yield (
            event.tenant_id, new_id(), endpoint.endpoint_id, event.event_id, event.aggregate_id, event.sequence,
            event.to_json(), str(DeliveryState.PENDING), 0, None if queue in busy else now, "", now,
        )  # fmt: skip
        busy.add(queue)

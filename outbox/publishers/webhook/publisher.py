"""Events to the tenants' webhook endpoints: here only the deliveries are written, so no endpoint holds up the outbox.

`outbox.publishers.webhook.delivery` sends them.
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
    name = "webhook"

    def publish(self, events: Sequence[Envelope]) -> None:
        by_tenant: defaultdict[UUID, list[Envelope]] = defaultdict(list)
        for event in events:
            by_tenant[event.tenant_id].append(event)
        endpoints = WebhookEndpoint.across_tenants.filter(active=True)
        for tenant_id in set(endpoints.filter(tenant_id__in=by_tenant).values_list("tenant_id", flat=True)):
            _enqueue(tenant_id, by_tenant[tenant_id])


@transaction.atomic
def _enqueue(tenant_id: UUID, events: Sequence[Envelope]) -> None:
    # Locked, as in recording an outcome: the next delivery of an aggregate must not be looked for, and found to be
    # none, while one is being added that would wait for it.
    endpoints = WebhookEndpoint.objects.for_tenant(tenant_id).filter(active=True).order_by("endpoint_id")
    subscribers = list(endpoints.select_for_update())
    deliveries = WebhookDelivery.objects.for_tenant(tenant_id)
    known = set(
        deliveries.filter(event_id__in=[event.event_id for event in events]).values_list(
            "endpoint_id", "event_id"
        )
    )
    pending = deliveries.filter(
        state=DeliveryState.PENDING, endpoint_id__in=[e.endpoint_id for e in subscribers]
    )
    queued = set(
        pending.filter(aggregate_id__in={event.aggregate_id for event in events})
        .values_list("endpoint_id", "aggregate_id")
        .distinct()
    )
    now = db_now()
    for endpoint in subscribers:
        insert_rows(WebhookDelivery, COLUMNS, _deliveries(endpoint, events, known, queued, now))


def _deliveries(
    endpoint: WebhookEndpoint,
    events: Sequence[Envelope],
    known: set[tuple[UUID, UUID]],
    queued: set[tuple[UUID, UUID]],
    now: datetime,
) -> Iterable[tuple[Any, ...]]:
    for event in events:
        wanted = not endpoint.event_types or event.type in endpoint.event_types
        if not wanted or (endpoint.endpoint_id, event.event_id) in known:
            continue
        queue = endpoint.endpoint_id, event.aggregate_id
        yield (
            event.tenant_id, new_id(), endpoint.endpoint_id, event.event_id, event.aggregate_id, event.sequence,
            event.to_json(), str(DeliveryState.PENDING), 0, None if queue in queued else now, "", now,
        )  # fmt: skip
        queued.add(queue)

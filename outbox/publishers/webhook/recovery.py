"""Webhook endpoints with their deliveries as operators see them, and the retrying of exhausted deliveries."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db import transaction
from django.db.models import Count, QuerySet

from eventservice.db.now import db_now
from outbox.models import DeliveryState, WebhookDelivery, WebhookEndpoint
from outbox.publishers.webhook.delivery_queue import filter_pending, lock_endpoint, promote_next_deliveries
from outbox.publishers.webhook.endpoints import find_endpoint

# No index serves exhausted deliveries: they are looked for among this many of those that ended last.
MAX_SCANNED = 10_000


@dataclass(frozen=True, slots=True)
class EndpointQueue:
    """An endpoint with its deliveries. `exhausted` counts only those among the latest of all endpoints."""

    endpoint: WebhookEndpoint
    pending: int
    exhausted: int


def list_endpoint_queues(tenant_id: UUID | None, limit: int, max_counted: int) -> list[EndpointQueue]:
    """Return the newest endpoints, of one tenant or of all. A count above `max_counted` is one more than that."""
    if tenant_id is None:
        endpoints = WebhookEndpoint.across_tenants.all()
    else:
        endpoints = WebhookEndpoint.objects.for_tenant(tenant_id)
    exhausted = _count_recently_exhausted()
    return [
        EndpointQueue(
            endpoint,
            pending=filter_pending(endpoint)[: max_counted + 1].count(),
            exhausted=exhausted.get(endpoint.endpoint_id, 0),
        )
        for endpoint in endpoints.order_by("-created_at", "endpoint_id")[:limit]
    ]


@transaction.atomic
def retry_exhausted_deliveries(tenant_id: UUID, endpoint_id: UUID, limit: int) -> int:
    """Make exhausted deliveries of the endpoint pending again, the earliest first. Return how many."""
    endpoint = find_endpoint(tenant_id, endpoint_id)
    if endpoint is None:
        return 0
    lock_endpoint(endpoint)
    # Chosen here: in SQL, a database would rather read all deliveries of the tenant.
    latest = _filter_exhausted(_find_scan_start()).values_list(
        "tenant_id", "endpoint_id", "delivery_id", "aggregate_id"
    )
    found = [(delivery, aggregate) for *key, delivery, aggregate in latest if tuple(key) == endpoint.pk]
    found = found[:limit]
    deliveries = WebhookDelivery.objects.for_tenant(tenant_id)
    retried = deliveries.filter(delivery_id__in=[delivery_id for delivery_id, _ in found])
    count = retried.filter(state=DeliveryState.EXHAUSTED).update(
        state=DeliveryState.PENDING, attempts=0, finished_at=None, next_attempt_at=None
    )
    _resume_aggregates(endpoint, {aggregate_id for _, aggregate_id in found})
    return count


def _resume_aggregates(endpoint: WebhookEndpoint, aggregates: set[UUID]) -> None:
    """Make the first delivery of each aggregate due, unless another is in flight: its end lets them go on."""
    in_flight = filter_pending(endpoint).filter(aggregate_id__in=aggregates, next_attempt_at__isnull=False)
    resumed = aggregates - set(in_flight.values_list("aggregate_id", flat=True))
    promote_next_deliveries(endpoint, resumed, db_now())


def _count_recently_exhausted() -> dict[UUID, int]:
    exhausted = _filter_exhausted(_find_scan_start()).order_by()
    return dict(exhausted.values_list("endpoint_id").annotate(Count("delivery_id")))


def _filter_exhausted(since: datetime | None) -> QuerySet[WebhookDelivery]:
    finished = WebhookDelivery.across_tenants.filter(finished_at__isnull=False)
    latest = finished if since is None else finished.filter(finished_at__gt=since)
    return latest.filter(state=DeliveryState.EXHAUSTED).order_by("finished_at")


def _find_scan_start() -> datetime | None:
    """Return the time after which deliveries are scanned, or None if all of them are."""
    finished = WebhookDelivery.across_tenants.filter(finished_at__isnull=False)
    moments = finished.order_by("-finished_at").values_list("finished_at", flat=True)
    return next(iter(moments[MAX_SCANNED : MAX_SCANNED + 1]), None)

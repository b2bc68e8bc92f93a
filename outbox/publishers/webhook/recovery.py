"""What operators see of webhook endpoints, and sending again what was given up."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Count, QuerySet

from eventservice.db.now import db_now
from outbox.models import DeliveryState, WebhookDelivery, WebhookEndpoint
from outbox.publishers.webhook.delivery import lock_endpoint, promote_next_deliveries

# No index is of what was given up: it is looked for among so many deliveries, the last that ended.
MAX_SCANNED = 10_000


@dataclass(frozen=True, slots=True)
class EndpointQueue:
    """`exhausted` are those among the latest deliveries of all endpoints."""

    endpoint: WebhookEndpoint
    pending: int
    exhausted: int


def list_endpoint_queues(tenant_id: UUID | None, most: int, most_counted: int) -> list[EndpointQueue]:
    """Of so many endpoints, the newest first."""
    if tenant_id is None:
        endpoints = WebhookEndpoint.across_tenants.all()
    else:
        endpoints = WebhookEndpoint.objects.for_tenant(tenant_id)
    exhausted = _count_recently_exhausted()
    return [
        EndpointQueue(
            endpoint,
            _filter_pending(endpoint)[: most_counted + 1].count(),
            exhausted.get(endpoint.endpoint_id, 0),
        )
        for endpoint in endpoints.order_by("-created_at", "endpoint_id")[:most]
    ]


def find_endpoint(tenant_id: UUID, endpoint_id: UUID) -> WebhookEndpoint | None:
    found: WebhookEndpoint | None = _filter_endpoint(tenant_id, endpoint_id).first()
    return found


@transaction.atomic
def retry_exhausted_deliveries(tenant_id: UUID, endpoint_id: UUID, most: int) -> int:
    """Deliveries that were given up are pending again, as many as that; how many."""
    endpoint = find_endpoint(tenant_id, endpoint_id)
    if endpoint is None:
        return 0
    lock_endpoint(endpoint)
    # Chosen here: in SQL, a database would rather read all that the tenant has.
    latest = _filter_exhausted(_find_scan_start()).values_list(
        "tenant_id", "endpoint_id", "delivery_id", "aggregate_id"
    )
    found = [(delivery, aggregate) for *key, delivery, aggregate in latest if tuple(key) == endpoint.pk][
        :most
    ]
    deliveries = WebhookDelivery.objects.for_tenant(tenant_id)
    again = deliveries.filter(delivery_id__in=[delivery_id for delivery_id, _ in found])
    count = again.filter(state=DeliveryState.EXHAUSTED).update(
        state=DeliveryState.PENDING, attempts=0, finished_at=None, next_attempt_at=None
    )
    _resume_aggregates(endpoint, {aggregate_id for _, aggregate_id in found})
    return count


def _resume_aggregates(endpoint: WebhookEndpoint, aggregates: set[UUID]) -> None:
    """Only the first of an aggregate may be under way: where another is, its end lets these go on."""
    under_way = _filter_pending(endpoint).filter(aggregate_id__in=aggregates, next_attempt_at__isnull=False)
    promote_next_deliveries(
        endpoint, aggregates - set(under_way.values_list("aggregate_id", flat=True)), db_now()
    )


def _filter_endpoint(tenant_id: UUID, endpoint_id: UUID) -> QuerySet[Any]:
    return WebhookEndpoint.objects.for_tenant(tenant_id).filter(endpoint_id=endpoint_id)


def _filter_pending(endpoint: WebhookEndpoint) -> QuerySet[Any]:
    deliveries = WebhookDelivery.objects.for_tenant(endpoint.tenant_id)
    return deliveries.filter(endpoint_id=endpoint.endpoint_id, state=DeliveryState.PENDING)


def _count_recently_exhausted() -> dict[UUID, int]:
    groups = (
        _filter_exhausted(_find_scan_start())
        .order_by()
        .values_list("endpoint_id")
        .annotate(Count("delivery_id"))
    )
    return dict(groups)


def _filter_exhausted(since: datetime | None) -> QuerySet[Any]:
    finished = WebhookDelivery.across_tenants.filter(finished_at__isnull=False)
    latest = finished if since is None else finished.filter(finished_at__gt=since)
    return latest.filter(state=DeliveryState.EXHAUSTED).order_by("finished_at")


def _find_scan_start() -> datetime | None:
    """What ended later is looked at; None: all is."""
    finished = WebhookDelivery.across_tenants.filter(finished_at__isnull=False)
    moments = finished.order_by("-finished_at").values_list("finished_at", flat=True)
    return next(iter(moments[MAX_SCANNED : MAX_SCANNED + 1]), None)

"""Webhook endpoints with their deliveries as operators see them, and the retrying of exhausted deliveries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Count, QuerySet, Subquery

from eventservice.db.now import db_now
from eventservice.kernel.errors import Conflict, NotFound
from outbox.models import DeliveryState, WebhookDelivery, WebhookEndpoint
from outbox.publishers.webhook.delivery_queue import (
    DELIVERY_LEASE,
    filter_pending,
    filter_pending_of_outer_endpoint,
    lock_endpoint,
    promote_next_deliveries,
)
from outbox.publishers.webhook.endpoints import find_endpoint, get_active_endpoint, select_deliveries

# No index serves exhausted deliveries: they are looked for among this many of those that ended last.
MAX_SCANNED = 10_000
# An endpoint is failing if a delivery waits for its next attempt after so many. One failure may be an accident.
MIN_FAILED_ATTEMPTS = 2
# The oldest delivery that fails is looked for among this many, those whose next attempt is the latest.
MAX_SAMPLED = 100
# So many deliveries are made due by one statement, and at once if an operator wants an endpoint to be retried.
MAX_MADE_DUE = 1000
MAX_RETRIED = 10_000


@dataclass(frozen=True, slots=True)
class EndpointQueue:
    """An endpoint with its deliveries. `exhausted` counts only those among the latest of all endpoints. `failure` is None
    unless its deliveries keep failing."""

    endpoint: WebhookEndpoint
    pending: int
    exhausted: int
    failure: EndpointFailure | None = None


@dataclass(frozen=True, slots=True)
class EndpointFailure:
    """A failing endpoint: how many deliveries wait, since when the oldest one fails, and its last error."""

    endpoint: WebhookEndpoint
    pending: int
    since: datetime
    reason: str


@dataclass(frozen=True, slots=True)
class DeliveryPage:
    """A page of an endpoint's deliveries, the newest first. `cursor` is where the next one begins.

    `partial` if the limit of scanned deliveries has cut the page short.
    """

    deliveries: list[WebhookDelivery]
    cursor: UUID | None
    partial: bool = False


def list_endpoint_deliveries(
    endpoint: WebhookEndpoint, state: str | None, before: UUID | None, limit: int
) -> DeliveryPage:
    """Return a page of the endpoint's deliveries, of one state or of all."""
    deliveries = WebhookDelivery.objects.for_tenant(endpoint.tenant_id)
    # The ids begin with the time. The index has them in order, and the state is compared here.
    walked = select_deliveries(endpoint.tenant_id, endpoint.endpoint_id).order_by("-delivery_id")
    if before is not None:
        walked = walked.filter(delivery_id__lt=before)
    max_scanned = limit + 1 if state is None else MAX_SCANNED
    scanned = list(walked.values_list("delivery_id", "state")[:max_scanned])
    found = [delivery_id for delivery_id, its_state in scanned if state in (None, its_state)]
    rows = {row.delivery_id: row for row in deliveries.filter(delivery_id__in=found[:limit])}
    page = [rows[delivery_id] for delivery_id in found[:limit] if delivery_id in rows]
    if len(found) > limit:
        return DeliveryPage(page, found[limit - 1])
    partial = state is not None and len(scanned) == MAX_SCANNED
    return DeliveryPage(page, scanned[-1][0] if partial else None, partial)


def find_delivery(endpoint: WebhookEndpoint, delivery_id: UUID) -> WebhookDelivery | None:
    deliveries = WebhookDelivery.objects.for_tenant(endpoint.tenant_id).filter(delivery_id=delivery_id)
    return deliveries.filter(endpoint_id=endpoint.endpoint_id).first()


def get_endpoint_queue(endpoint: WebhookEndpoint, max_counted: int) -> EndpointQueue:
    """Return the endpoint with its deliveries. A count above `max_counted` is one more than that."""
    failure = find_endpoint_failure(endpoint, max_counted)
    return _build_queue(endpoint, _count_recently_exhausted(), failure, max_counted)


def list_endpoint_queues(tenant_id: UUID | None, limit: int, max_counted: int) -> list[EndpointQueue]:
    """Return the newest endpoints, of one tenant or of all. A count above `max_counted` is one more than that."""
    exhausted = _count_recently_exhausted()
    queues = []
    for endpoint in _select_endpoints(tenant_id).order_by("-created_at", "endpoint_id")[:limit]:
        is_suspect = (endpoint.latest_attempts or 0) >= MIN_FAILED_ATTEMPTS
        failure = find_endpoint_failure(endpoint, max_counted) if is_suspect else None
        queues.append(_build_queue(endpoint, exhausted, failure, max_counted))
    return queues


def _build_queue(
    endpoint: WebhookEndpoint,
    exhausted: Mapping[tuple[UUID, UUID], int],
    failure: EndpointFailure | None,
    max_counted: int,
) -> EndpointQueue:
    pending = failure.pending if failure else count_pending(endpoint, max_counted)
    return EndpointQueue(endpoint, pending, exhausted.get(endpoint.pk, 0), failure)


def count_pending(endpoint: WebhookEndpoint, max_counted: int) -> int:
    """Count pending deliveries. A count above `max_counted` is one more than that."""
    return filter_pending(endpoint)[: max_counted + 1].count()


def list_failing_endpoints(tenant_id: UUID | None, limit: int, max_counted: int) -> list[EndpointFailure]:
    """Return active endpoints whose deliveries keep failing, of one tenant or of all."""
    suspects = _select_endpoints(tenant_id).filter(active=True, latest_attempts__gte=MIN_FAILED_ATTEMPTS)
    found = (
        find_endpoint_failure(endpoint, max_counted)
        for endpoint in suspects.order_by("created_at", "endpoint_id")[:limit]
    )
    return [failure for failure in found if failure]


def _select_endpoints(tenant_id: UUID | None) -> QuerySet[Any]:
    """Select the endpoints of one tenant or of all. `latest_attempts` are those of the delivery whose next attempt is the
    latest, which the index gives: what has failed waits longer than what is new."""
    waiting = filter_pending_of_outer_endpoint().filter(next_attempt_at__isnull=False)
    latest = Subquery(waiting.order_by("-next_attempt_at").values("attempts")[:1])
    if tenant_id is None:
        return WebhookEndpoint.across_tenants.annotate(latest_attempts=latest)
    return WebhookEndpoint.objects.for_tenant(tenant_id).annotate(latest_attempts=latest)


def find_endpoint_failure(endpoint: WebhookEndpoint, max_counted: int) -> EndpointFailure | None:
    """Return how the endpoint fails, or None if it does not. A count above `max_counted` is one more than that."""
    waiting = filter_pending(endpoint).filter(next_attempt_at__isnull=False).order_by("-next_attempt_at")
    sample = waiting.values_list("created_at", "last_error", "attempts")[:MAX_SAMPLED]
    failed = [
        (created_at, error)
        for created_at, error, attempts in sample
        if error and attempts >= MIN_FAILED_ATTEMPTS
    ]
    if not endpoint.active or not failed:
        return None
    since, reason = min(failed)
    return EndpointFailure(endpoint, count_pending(endpoint, max_counted), since, reason)


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
    count = _revive(retried)
    _resume_aggregates(endpoint, {aggregate_id for _, aggregate_id in found})
    return count


@transaction.atomic
def retry_pending_deliveries(tenant_id: UUID, endpoint_id: UUID, limit: int) -> int:
    """Make the deliveries due now that wait for another attempt, those with the earliest attempt first. Return how many.

    What is due within DELIVERY_LEASE is left alone: it may be on its way. Raise NotFound, or Conflict if the endpoint is
    disabled.
    """
    endpoint = get_active_endpoint(tenant_id, endpoint_id)
    now = db_now()
    waiting = filter_pending(endpoint).filter(next_attempt_at__gt=now + DELIVERY_LEASE)
    ids = list(waiting.order_by("next_attempt_at").values_list("delivery_id", flat=True)[:limit])
    return sum(
        _make_due(tenant_id, ids[start : start + MAX_MADE_DUE], now)
        for start in range(0, len(ids), MAX_MADE_DUE)
    )


@transaction.atomic
def retry_delivery(tenant_id: UUID, endpoint_id: UUID, delivery_id: UUID) -> None:
    """Make one delivery due now: one that waits for another attempt, or one that was given up.

    Raise NotFound, or Conflict if that is not its state or the endpoint is disabled.
    """
    endpoint = get_active_endpoint(tenant_id, endpoint_id)
    lock_endpoint(endpoint)
    delivery = find_delivery(endpoint, delivery_id)
    if delivery is None:
        raise NotFound("webhook delivery")
    if delivery.state == DeliveryState.DELIVERED:
        raise Conflict("wrong_state", "This delivery has arrived: there is nothing to retry.")
    if delivery.state == DeliveryState.EXHAUSTED:
        _revive(WebhookDelivery.objects.for_tenant(tenant_id).filter(delivery_id=delivery_id))
        _resume_aggregates(endpoint, {delivery.aggregate_id})
    elif delivery.next_attempt_at is None:
        raise Conflict("wrong_state", "It waits for an earlier event of its call. Retry that delivery.")
    elif not _make_due(tenant_id, [delivery_id], db_now()):
        raise Conflict("wrong_state", "It is being sent, or is due within a minute.")


def is_waiting(delivery: WebhookDelivery, now: datetime) -> bool:
    """Return whether a delivery waits for its next attempt, and is surely not on its way."""
    at = delivery.next_attempt_at
    return delivery.state == DeliveryState.PENDING and at is not None and at > now + DELIVERY_LEASE


def _make_due(tenant_id: UUID, ids: Sequence[UUID], now: datetime) -> int:
    """Make deliveries due, except those that may be on their way. Nobody claims the others before they are due."""
    deliveries = WebhookDelivery.objects.for_tenant(tenant_id).filter(delivery_id__in=ids)
    waiting = deliveries.filter(state=DeliveryState.PENDING, next_attempt_at__gt=now + DELIVERY_LEASE)
    return waiting.update(next_attempt_at=now)


def _revive(deliveries: QuerySet[WebhookDelivery]) -> int:
    """Make exhausted deliveries pending again, as if they had never been sent. Return how many."""
    return deliveries.filter(state=DeliveryState.EXHAUSTED).update(
        state=DeliveryState.PENDING, attempts=0, finished_at=None, next_attempt_at=None
    )


def _resume_aggregates(endpoint: WebhookEndpoint, aggregates: set[UUID]) -> None:
    """Make the first delivery of each aggregate due, unless another is in flight: its end lets them go on."""
    in_flight = filter_pending(endpoint).filter(aggregate_id__in=aggregates, next_attempt_at__isnull=False)
    resumed = aggregates - set(in_flight.values_list("aggregate_id", flat=True))
    promote_next_deliveries(endpoint, resumed, db_now())


def _count_recently_exhausted() -> dict[tuple[UUID, UUID], int]:
    """Count the exhausted deliveries of each endpoint, by its tenant and its id."""
    exhausted = _filter_exhausted(_find_scan_start()).order_by()
    counts = exhausted.values_list("tenant_id", "endpoint_id").annotate(Count("delivery_id"))
    return {(tenant_id, endpoint_id): count for tenant_id, endpoint_id, count in counts}


def _filter_exhausted(since: datetime | None) -> QuerySet[WebhookDelivery]:
    finished = WebhookDelivery.across_tenants.filter(finished_at__isnull=False)
    latest = finished if since is None else finished.filter(finished_at__gt=since)
    return latest.filter(state=DeliveryState.EXHAUSTED).order_by("finished_at")


def _find_scan_start() -> datetime | None:
    """Return the time after which deliveries are scanned, or None if all of them are."""
    finished = WebhookDelivery.across_tenants.filter(finished_at__isnull=False)
    moments = finished.order_by("-finished_at").values_list("finished_at", flat=True)
    return next(iter(moments[MAX_SCANNED : MAX_SCANNED + 1]), None)

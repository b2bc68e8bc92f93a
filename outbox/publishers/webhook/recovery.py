"""Webhook endpoints with their deliveries as operators see them, and the retrying of exhausted deliveries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Count, Max, Q, QuerySet, Subquery

from eventservice.db.now import db_now
from eventservice.kernel.errors import Conflict, NotFound
from outbox.models import DeliveryState, WebhookDelivery, WebhookEndpoint
from outbox.publishers.webhook.delivery_queue import (
    DELIVERY_LEASE,
    GONE_REASON,
    HTTP_GONE,
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
# Of no more endpoints with waiting deliveries than this, those with the most attempts first, the failures are looked for.
MAX_SUSPECTS = 100
# A failing endpoint that accepted a delivery so lately, and has failed at none since, is recovering.
RECOVERY_PERIOD = timedelta(minutes=15)
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

    @property
    def state(self) -> str:
        """Return the endpoint's state in a word, as everything that shows it calls it."""
        if not self.endpoint.active:
            return "disabled"
        if self.failure is None:
            return "active"
        return "recovering" if self.failure.is_recovering else "failing"


@dataclass(frozen=True, slots=True)
class EndpointFailure:
    """A failing endpoint: how many deliveries wait, since when the oldest one fails, and its last error.

    `accepted_at` is None unless the endpoint is recovering: then it is when it last accepted a delivery.
    """

    endpoint: WebhookEndpoint
    pending: int
    since: datetime
    reason: str
    accepted_at: datetime | None = None

    @property
    def is_recovering(self) -> bool:
        return self.accepted_at is not None


@dataclass(frozen=True, slots=True)
class GoneEndpoint:
    """An endpoint that answered 410 and was therefore disabled, and how many of its deliveries were given up.

    `disabled_at` is None if the delivery that it answered so is not among the latest of all endpoints.
    """

    endpoint: WebhookEndpoint
    disabled_at: datetime | None
    given_up: int


@dataclass(frozen=True, slots=True)
class RetriedDeliveries:
    """The deliveries of an endpoint after a retry: those that were made due, the others that are pending, and those that were
    given up lately."""

    due: int
    others: int
    exhausted: int


class _EndedDeliveries:
    """The deliveries of all endpoints that ended last, by the key of the endpoint. They are read when they are needed."""

    @cached_property
    def exhausted(self) -> Mapping[tuple[UUID, UUID], int]:
        return {key: count for key, (count, _) in self._given_up.items()}

    @cached_property
    def gone_at(self) -> Mapping[tuple[UUID, UUID], datetime | None]:
        """When the endpoints answered 410 for the last time."""
        return {key: at for key, (_, at) in self._given_up.items()}

    @cached_property
    def accepted_at(self) -> Mapping[tuple[UUID, UUID], datetime]:
        """When the endpoints accepted a delivery for the last time, if that was within RECOVERY_PERIOD."""
        since = max(filter(None, (self._since, db_now() - RECOVERY_PERIOD)))
        finished = WebhookDelivery.across_tenants.filter(finished_at__isnull=False, finished_at__gt=since)
        delivered = finished.filter(state=DeliveryState.DELIVERED).order_by()
        latest = delivered.values_list("tenant_id", "endpoint_id").annotate(at=Max("finished_at"))
        return {(tenant_id, endpoint_id): at for tenant_id, endpoint_id, at in latest}

    @cached_property
    def _given_up(self) -> Mapping[tuple[UUID, UUID], tuple[int, datetime | None]]:
        gone_at = Max("finished_at", filter=Q(response_status=HTTP_GONE))
        exhausted = _filter_exhausted(self._since).order_by().values_list("tenant_id", "endpoint_id")
        counts = exhausted.annotate(count=Count("delivery_id"), gone_at=gone_at)
        return {(tenant_id, endpoint_id): (count, at) for tenant_id, endpoint_id, count, at in counts}

    @cached_property
    def _since(self) -> datetime | None:
        return _find_scan_start()


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
    return _build_queue(endpoint, _EndedDeliveries(), max_counted)


def list_endpoint_queues(tenant_id: UUID | None, limit: int, max_counted: int) -> list[EndpointQueue]:
    """Return the newest endpoints, of one tenant or of all. A count above `max_counted` is one more than that."""
    ended = _EndedDeliveries()
    newest = _select_endpoints(tenant_id).order_by("-created_at", "endpoint_id")[:limit]
    return [_build_queue(endpoint, ended, max_counted) for endpoint in newest]


def _build_queue(endpoint: WebhookEndpoint, ended: _EndedDeliveries, max_counted: int) -> EndpointQueue:
    pending = count_pending(endpoint, max_counted)
    failure = _find_failure(endpoint, ended, max_counted) if pending else None
    return EndpointQueue(endpoint, pending, ended.exhausted.get(endpoint.pk, 0), failure)


def count_pending(endpoint: WebhookEndpoint, max_counted: int) -> int:
    """Count pending deliveries. A count above `max_counted` is one more than that."""
    return filter_pending(endpoint)[: max_counted + 1].count()


def list_failing_endpoints(tenant_id: UUID | None, limit: int, max_counted: int) -> list[EndpointFailure]:
    """Return active endpoints whose deliveries keep failing, of one tenant or of all, those that recover last."""
    # The delivery whose next attempt is the latest, which the index gives, has usually failed: it waits longer than what
    # is new. Only the order goes by it, so that an endpoint that is recovering is not left out.
    waiting = filter_pending_of_outer_endpoint().filter(next_attempt_at__isnull=False)
    latest = Subquery(waiting.order_by("-next_attempt_at").values("attempts")[:1])
    waited_for = _select_endpoints(tenant_id).filter(active=True).annotate(latest_attempts=latest)
    suspects = waited_for.filter(latest_attempts__isnull=False).order_by(
        "-latest_attempts", "created_at", "endpoint_id"
    )
    ended = _EndedDeliveries()
    found = (_find_failure(endpoint, ended, max_counted) for endpoint in suspects[:MAX_SUSPECTS])
    failures = sorted(filter(None, found), key=lambda failure: (failure.is_recovering, failure.since))
    return failures[:limit]


def list_gone_endpoints(tenant_id: UUID | None, limit: int) -> list[GoneEndpoint]:
    """Return the endpoints that are disabled because they answered 410, of one tenant or of all, the newest first."""
    gone = _filter_gone(_select_endpoints(tenant_id)).order_by("-created_at", "endpoint_id")
    ended = _EndedDeliveries()
    return [
        GoneEndpoint(endpoint, ended.gone_at.get(endpoint.pk), ended.exhausted.get(endpoint.pk, 0))
        for endpoint in gone[:limit]
    ]


def count_gone_endpoints() -> int:
    """Return how many endpoints are disabled because they answered 410."""
    return _filter_gone(WebhookEndpoint.across_tenants.all()).count()


def _filter_gone(endpoints: QuerySet[WebhookEndpoint]) -> QuerySet[Any]:
    return endpoints.filter(active=False, disabled_reason=GONE_REASON)


def _select_endpoints(tenant_id: UUID | None) -> QuerySet[Any]:
    if tenant_id is None:
        return WebhookEndpoint.across_tenants.all()
    return WebhookEndpoint.objects.for_tenant(tenant_id)


def _find_failure(
    endpoint: WebhookEndpoint, ended: _EndedDeliveries, max_counted: int
) -> EndpointFailure | None:
    """Return how the endpoint fails, or None if it does not. A count above `max_counted` is one more than that."""
    if not endpoint.active:
        return None
    waiting = filter_pending(endpoint).filter(next_attempt_at__isnull=False).order_by("-next_attempt_at")
    sample = waiting.values_list("created_at", "last_error", "attempts")[:MAX_SAMPLED]
    failed = [
        (created_at, error)
        for created_at, error, attempts in sample
        if error and attempts >= MIN_FAILED_ATTEMPTS
    ]
    if not failed:
        return None
    since, reason = min(failed)
    accepted_at = _find_recovery(endpoint, ended)
    return EndpointFailure(endpoint, count_pending(endpoint, max_counted), since, reason, accepted_at)


def _find_recovery(endpoint: WebhookEndpoint, ended: _EndedDeliveries) -> datetime | None:
    """Return when the endpoint accepted a delivery last, unless an attempt has failed since."""
    accepted_at = ended.accepted_at.get(endpoint.pk)
    failed_at = endpoint.last_failed_at
    if accepted_at is None or (failed_at is not None and failed_at > accepted_at):
        return None
    return accepted_at


@transaction.atomic
def retry_exhausted_deliveries(tenant_id: UUID, endpoint_id: UUID, limit: int) -> int:
    """Make exhausted deliveries of the endpoint pending again, the earliest first. Return how many.

    Raise NotFound, or Conflict if the endpoint is disabled.
    """
    endpoint = get_active_endpoint(tenant_id, endpoint_id)
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


def summarize_retry(tenant_id: UUID, endpoint_id: UUID, due: int, max_counted: int) -> RetriedDeliveries:
    """Return what became of the endpoint's deliveries when so many were made due. A larger count of the others is
    `max_counted` and one."""
    endpoint = find_endpoint(tenant_id, endpoint_id)
    if endpoint is None:
        return RetriedDeliveries(due, 0, 0)
    others = min(count_pending(endpoint, max_counted + due) - due, max_counted + 1)
    exhausted = _EndedDeliveries().exhausted.get(endpoint.pk, 0)
    return RetriedDeliveries(due, max(0, others), exhausted)


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


def _filter_exhausted(since: datetime | None) -> QuerySet[WebhookDelivery]:
    finished = WebhookDelivery.across_tenants.filter(finished_at__isnull=False)
    latest = finished if since is None else finished.filter(finished_at__gt=since)
    return latest.filter(state=DeliveryState.EXHAUSTED).order_by("finished_at")


def _find_scan_start() -> datetime | None:
    """Return the time after which deliveries are scanned, or None if all of them are."""
    finished = WebhookDelivery.across_tenants.filter(finished_at__isnull=False)
    moments = finished.order_by("-finished_at").values_list("finished_at", flat=True)
    return next(iter(moments[MAX_SCANNED : MAX_SCANNED + 1]), None)

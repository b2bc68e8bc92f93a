"""The deliveries that wait for an endpoint, and every change of their state.

Of an aggregate's deliveries to an endpoint only the first has a `next_attempt_at`; when it ends, the next one gets its
own. So due deliveries are found without reading those behind them. While a delivery is being sent, `next_attempt_at`
is the time at which it is due again if its sender dies.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from django.db import connection, transaction
from django.db.models import F, Min, OuterRef, QuerySet, Subquery

from eventservice.db.bulk import execute_rows
from eventservice.db.leases import CLOCK_MARGIN
from eventservice.db.now import DbNow, db_now
from eventservice.kernel.backoff import full_jitter
from outbox.models import DeliveryState, WebhookDelivery, WebhookEndpoint

# About three days on average: a receiver may be unavailable over a weekend.
MAX_ATTEMPTS = 36
MIN_RETRY_SECONDS, MAX_RETRY_SECONDS = 5.0, 6 * 3600.0
# No delivery waits longer than this, except that the clock was set back.
MAX_AHEAD = timedelta(seconds=MAX_RETRY_SECONDS) + CLOCK_MARGIN
# Longer than a batch can take: until then no other process sends what this one is sending.
DELIVERY_LEASE = timedelta(seconds=60)
# How long deliveries that cannot be signed wait for a readable secret.
UNSIGNED_RETRY_DELAY = timedelta(seconds=60)
# How long the deliverer may rest if no delivery is pending.
IDLE_SECONDS = 30.0
HTTP_GONE = 410
GONE_REASON = "the endpoint answered 410 Gone"

# The number of the attempt guards each update: a sender that was declared dead writes nothing.
GUARD = "WHERE tenant_id = %s AND delivery_id = %s AND attempts = %s AND state = 'Pending'"
RESPONSE = "last_error = %s, response_status = %s, response_body = %s"
FINISH = (
    f"UPDATE webhook_deliveries SET state = %s, {RESPONSE}, finished_at = %s, next_attempt_at = NULL {GUARD}"
)
POSTPONE = f"UPDATE webhook_deliveries SET {RESPONSE}, next_attempt_at = %s {GUARD}"
PROMOTE = """UPDATE webhook_deliveries SET next_attempt_at = %s
WHERE tenant_id = %s AND endpoint_id = %s AND aggregate_id = %s AND aggregate_seq = %s
    AND state = 'Pending' AND next_attempt_at IS NULL"""

# As a subquery of one row and not with EXISTS, for which MariaDB might read all deliveries that are pending.
PENDING_SQL = """
SELECT 1 FROM webhook_endpoints e WHERE (
    SELECT d.delivery_id FROM webhook_deliveries d
    WHERE d.tenant_id = e.tenant_id AND d.endpoint_id = e.endpoint_id AND d.state = 'Pending'
    ORDER BY d.aggregate_id, d.aggregate_seq LIMIT 1
) IS NOT NULL LIMIT 1"""


@dataclass(frozen=True, slots=True)
class WebhookResult:
    """The result of sending a delivery: the status and the beginning of the response, or None and the error."""

    delivery: WebhookDelivery
    status: int | None
    error: str = ""
    body: str = ""

    @property
    def is_success(self) -> bool:
        return self.status is not None and 200 <= self.status < 300

    @property
    def reason(self) -> str:
        """Why it failed, or an empty string."""
        if self.is_success:
            return ""
        return self.error if self.status is None else f"HTTP {self.status}"

    @property
    def stored(self) -> tuple[str, int | None, str | None]:
        """Return the values of RESPONSE."""
        return self.reason, self.status, None if self.is_success else self.body or None


class DeliveryCounts(NamedTuple):
    delivered: int = 0
    retried: int = 0
    exhausted: int = 0
    # Endpoints that this has disabled.
    disabled: int = 0


# --- finding and claiming -------------------------------------------------------------------------------------


def has_pending_deliveries() -> bool:
    """Return whether a delivery waits for any endpoint, due or not.

    Raw SQL, because an idle dispatcher asks each second: through the ORM it took a third of what that uses.
    """
    with connection.cursor() as cursor:
        cursor.execute(PENDING_SQL)
        return cursor.fetchone() is not None


def list_due_endpoints() -> tuple[list[WebhookEndpoint], float]:
    """Return the active endpoints with due deliveries, and in how many seconds there will be another."""
    queue = filter_pending_of_outer_endpoint().filter(next_attempt_at__isnull=False)
    first = Subquery(queue.order_by("next_attempt_at").values("next_attempt_at")[:1])
    active = WebhookEndpoint.across_tenants.filter(active=True)
    waiting = list(active.annotate(due_at=first).filter(due_at__isnull=False))
    if not waiting:
        return [], IDLE_SECONDS
    now = db_now()
    for endpoint in waiting:
        if endpoint.due_at > now + MAX_AHEAD:
            endpoint.due_at = _make_future_deliveries_due(endpoint, now)
    later = [(endpoint.due_at - now).total_seconds() for endpoint in waiting if endpoint.due_at > now]
    return [endpoint for endpoint in waiting if endpoint.due_at <= now], min([IDLE_SECONDS, *later])


def _make_future_deliveries_due(endpoint: WebhookEndpoint, now: datetime) -> datetime:
    """Make deliveries due that wait longer than any retry does, because the clock was set back."""
    filter_pending(endpoint).filter(next_attempt_at__gt=now + MAX_AHEAD).update(next_attempt_at=now)
    return now


@transaction.atomic
def claim_deliveries(endpoint: WebhookEndpoint, limit: int) -> tuple[list[WebhookDelivery], datetime]:
    """Claim due deliveries, and count an attempt of each: it may be sent even if its sender dies right after.

    Return them with the database's time.
    """
    now = db_now()
    due = _list_due(endpoint, now, limit)
    keys = [delivery.delivery_id for delivery in due]
    _filter_pending_by_id(endpoint, keys).update(
        attempts=F("attempts") + 1, next_attempt_at=DbNow(DELIVERY_LEASE)
    )
    for delivery in due:
        delivery.attempts += 1
        delivery.endpoint = endpoint
    return due, now


@transaction.atomic
def postpone_deliveries(endpoint: WebhookEndpoint, limit: int, reason: str) -> int:
    """Postpone due deliveries that cannot be signed. No attempt is counted. Return how many they were."""
    keys = [delivery.delivery_id for delivery in _list_due(endpoint, db_now(), limit)]
    return _filter_pending_by_id(endpoint, keys).update(
        last_error=reason, next_attempt_at=DbNow(UNSIGNED_RETRY_DELAY)
    )


def _list_due(endpoint: WebhookEndpoint, now: datetime, limit: int) -> list[WebhookDelivery]:
    due = filter_pending(endpoint).filter(next_attempt_at__lte=now).order_by("next_attempt_at")
    return list(due.select_for_update(skip_locked=True)[:limit])


# --- recording ------------------------------------------------------------------------------------------------


@transaction.atomic
def record_results(endpoint: WebhookEndpoint, results: Sequence[WebhookResult]) -> DeliveryCounts:
    """Record the results of deliveries to one endpoint and when it failed, and disable it if it is gone."""
    lock_endpoint(endpoint)
    now = db_now()
    is_gone = any(result.status == HTTP_GONE for result in results)
    max_attempts = 0 if is_gone else MAX_ATTEMPTS
    delivered = [result for result in results if result.is_success]
    failed = [result for result in results if not result.is_success]
    exhausted = [result for result in failed if result.delivery.attempts >= max_attempts]
    retried = [result for result in failed if result.delivery.attempts < max_attempts]
    counts = DeliveryCounts(
        delivered=_finish(DeliveryState.DELIVERED, delivered, now),
        retried=_postpone(retried, now),
        exhausted=_finish(DeliveryState.EXHAUSTED, exhausted, now),
    )
    promote_next_deliveries(endpoint, {result.delivery.aggregate_id for result in delivered + exhausted}, now)
    if failed:
        filter_endpoint(endpoint).update(last_failed_at=now)
    return counts._replace(disabled=_disable(endpoint)) if is_gone else counts


def _disable(endpoint: WebhookEndpoint) -> int:
    """Disable an endpoint that responded that it is gone for good. Return whether it was active, as 1 or 0.

    Many deliveries may be waiting: later passes give them up.
    """
    rows = filter_endpoint(endpoint)
    disabled = rows.filter(active=True).update(active=False)
    rows.update(disabled_reason=GONE_REASON)
    return disabled


def give_up_gone_endpoint(limit: int, busy: Collection[WebhookEndpoint] = ()) -> int:
    """Give up, in order, some deliveries that wait for an endpoint that is gone. Return how many.

    `busy` endpoints are left out: what is on its way to them may still arrive.
    """
    gone = WebhookEndpoint.across_tenants.filter(active=False, disabled_reason=GONE_REASON)
    # In the order of the index: otherwise SQLite may read the table.
    pending = filter_pending_of_outer_endpoint().order_by("aggregate_id", "aggregate_seq")
    found = gone.annotate(first=Subquery(pending.values("delivery_id")[:1])).filter(first__isnull=False)
    endpoint = next((endpoint for endpoint in found if endpoint not in busy), None)
    return _give_up(endpoint, limit) if endpoint else 0


@transaction.atomic
def _give_up(endpoint: WebhookEndpoint, limit: int) -> int:
    lock_endpoint(endpoint)
    if filter_endpoint(endpoint).filter(active=True).exists():
        return 0  # it has been enabled again meanwhile
    pending = filter_pending(endpoint).order_by("aggregate_id", "aggregate_seq")[:limit]
    found = list(pending.values_list("delivery_id", "aggregate_id"))
    given_up = _filter_pending_by_id(endpoint, [delivery_id for delivery_id, _ in found]).update(
        state=DeliveryState.EXHAUSTED, last_error=GONE_REASON, finished_at=DbNow(), next_attempt_at=None
    )
    # If the endpoint is enabled again before all are given up, the others go on.
    promote_next_deliveries(endpoint, {aggregate_id for _, aggregate_id in found}, db_now())
    return given_up


def promote_next_deliveries(endpoint: WebhookEndpoint, aggregates: set[UUID], now: datetime) -> None:
    """Make the next delivery of each aggregate due."""
    pending = filter_pending(endpoint).filter(aggregate_id__in=aggregates)
    following = pending.values_list("aggregate_id").annotate(first=Min("aggregate_seq"))
    execute_rows(PROMOTE, [(now, endpoint.tenant_id, endpoint.endpoint_id, *queue) for queue in following])


def _finish(state: DeliveryState, results: Sequence[WebhookResult], now: datetime) -> int:
    return execute_rows(
        FINISH, [(state.value, *each.stored, now, *_build_guard(each.delivery)) for each in results]
    )


def _postpone(results: Sequence[WebhookResult], now: datetime) -> int:
    def compute_retry_at(delivery: WebhookDelivery) -> datetime:
        return now + timedelta(seconds=full_jitter(delivery.attempts, MIN_RETRY_SECONDS, MAX_RETRY_SECONDS))

    return execute_rows(
        POSTPONE,
        [(*each.stored, compute_retry_at(each.delivery), *_build_guard(each.delivery)) for each in results],
    )


def _build_guard(delivery: WebhookDelivery) -> tuple[UUID, UUID, int]:
    return delivery.tenant_id, delivery.delivery_id, delivery.attempts


# --- rows -----------------------------------------------------------------------------------------------------


def lock_endpoint(endpoint: WebhookEndpoint) -> None:
    list(filter_endpoint(endpoint).select_for_update())


def filter_endpoint(endpoint: WebhookEndpoint) -> QuerySet[WebhookEndpoint]:
    return WebhookEndpoint.objects.for_tenant(endpoint.tenant_id).filter(endpoint_id=endpoint.endpoint_id)


def filter_pending(endpoint: WebhookEndpoint) -> QuerySet[WebhookDelivery]:
    deliveries = WebhookDelivery.objects.for_tenant(endpoint.tenant_id)
    return deliveries.filter(endpoint_id=endpoint.endpoint_id, state=DeliveryState.PENDING)


def _filter_pending_by_id(endpoint: WebhookEndpoint, ids: Sequence[UUID]) -> QuerySet[WebhookDelivery]:
    """Select deliveries without naming the endpoint, by whose index SQLite would rather read all that waits for it."""
    deliveries = WebhookDelivery.objects.for_tenant(endpoint.tenant_id).filter(delivery_id__in=ids)
    return deliveries.filter(state=DeliveryState.PENDING)


def filter_pending_of_outer_endpoint() -> QuerySet[WebhookDelivery]:
    """Select the pending deliveries of the endpoint of an outer query."""
    return WebhookDelivery.across_tenants.filter(
        tenant_id=OuterRef("tenant_id"), endpoint_id=OuterRef("endpoint_id"), state=DeliveryState.PENDING
    )

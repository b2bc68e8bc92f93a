"""Sends webhook deliveries: in order within an aggregate, with retries of their own, each endpoint for itself.

Of an aggregate's deliveries to an endpoint only the first has a `next_attempt_at`; when it ends, the next one gets
its own. So what is due can be sent, whatever waits behind it is not even looked at, and a delivery that is being
sent is marked by the time at which it would be due again if its sender died.
"""

from __future__ import annotations

import binascii
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import count, islice
from typing import Any, Protocol
from uuid import UUID

from django.db import transaction
from django.db.models import F, Min, OuterRef, QuerySet, Subquery

from eventservice.db.bulk import execute_rows
from eventservice.db.errors import tolerate_outage
from eventservice.db.now import DbNow, db_now
from eventservice.kernel.backoff import full_jitter
from eventservice.kernel.faults import trigger_fault
from eventservice.kernel.logging import get_logger
from eventservice.kernel.secrets import Undecipherable, decrypt
from eventservice.kernel.signing import build_signature_headers, decode_secret
from outbox.models import DeliveryState, WebhookDelivery, WebhookEndpoint

log = get_logger(__name__)

# About three days on average: a receiver may be away over a weekend.
MAX_ATTEMPTS = 36
MIN_RETRY_SECONDS, MAX_RETRY_SECONDS = 5.0, 6 * 3600.0
TIMEOUT_SECONDS = 10.0
BATCH = 32
# Endpoints that a pass begins to send to, a short transaction each: events wait to be published meanwhile.
MAX_STARTS_PER_PASS = 16
# Longer than a batch can take: until then nobody else sends what this process is sending.
DELIVERY_LEASE = timedelta(seconds=60)
HTTP_GONE = 410
GONE_REASON = "the endpoint answered 410 Gone"
# Of what waits for one that is gone, so many are given up at once.
GIVE_UP_BATCH = 500
# What cannot be signed waits so long for a secret that can be read; so many deliveries are put off at once.
UNSIGNED_RETRY_DELAY = timedelta(seconds=60)
POSTPONE_BATCH = 500
IDLE_SECONDS = 30.0
CLOSE_POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class WebhookRequest:
    key: Any  # the delivery, which comes back with the result
    tenant_id: UUID
    url: str
    headers: Sequence[tuple[str, str]]
    body: bytes
    timeout_seconds: float


@dataclass(frozen=True, slots=True)
class WebhookResult:
    """Of the request with this key: the status of the response, or None and why there was none."""

    key: Any
    status: int | None
    error: str = ""


class Transport(Protocol):
    """Makes requests as POST, many at a time. Each has one result, and its timeout bounds when."""

    def send(self, requests: Sequence[WebhookRequest]) -> None:
        """Returns at once."""

    def collect(self, timeout: float) -> Sequence[WebhookResult]:
        """What has ended since the last call; waits that many seconds at most for the first."""


@dataclass(frozen=True, slots=True)
class DeliveryResult:
    """What one pass did, and how many seconds it may rest if nothing is published meanwhile."""

    delivered: int
    retried: int
    exhausted: int
    next_wait: float


class WebhookDeliverer:
    """One batch at a time to each endpoint. A tenant takes no more places than it leaves free: however many slow
    endpoints it has, there are some for the others'."""

    def __init__(
        self, transport: Transport, *, max_in_flight: int = 512, collect_seconds: float = 0.05
    ) -> None:
        self._transport = transport
        self._max_in_flight = max_in_flight
        self._collect_seconds = collect_seconds
        self._sending: set[WebhookDelivery] = set()
        self._of_tenant: Counter[UUID] = Counter()
        self._ended: defaultdict[WebhookEndpoint, list[WebhookResult]] = defaultdict(list)
        self._failing: set[WebhookEndpoint] = set()

    def deliver_once(self) -> DeliveryResult:
        """Sends what is due, and records what has ended; waits for that a moment, and not for the slowest."""
        due, next_due = list_due_endpoints()
        postpone_deliveries = self._start_due(due)
        ended = self._record_ended(self._collect_seconds)
        given_up = give_up_gone_endpoint(GIVE_UP_BATCH, self._busy())
        delivered, retried, exhausted = map(sum, zip((0, postpone_deliveries, given_up), *ended, strict=True))
        idle = not (self._sending or delivered or retried or exhausted)
        return DeliveryResult(delivered, retried, exhausted, next_due if idle else 0.0)

    def close(self, grace_seconds: float, stay: Callable[[], None]) -> None:
        """Records what ends within the grace, and keeps its place meanwhile. The rest is due again when its lease ends."""
        ends_at = time.monotonic() + grace_seconds
        left = 0.0
        while self._sending and left >= 0:
            with tolerate_outage(left):
                self._record_ended(min(left, CLOSE_POLL_SECONDS))
                stay()
            left = ends_at - time.monotonic()

    def _busy(self) -> set[WebhookEndpoint]:
        return {delivery.endpoint for delivery in self._sending}

    def _start_due(self, due: Sequence[WebhookEndpoint]) -> int:
        """How many deliveries were put off. One endpoint of each tenant, by lot, comes before the second of any."""
        turns: defaultdict[UUID, Iterator[int]] = defaultdict(count)
        drawn = sorted(random.sample(due, len(due)), key=lambda endpoint: next(turns[endpoint.tenant_id]))
        busy = self._busy()
        able = (endpoint for endpoint in drawn if endpoint not in busy and self._room(endpoint) > 0)
        return sum(self._start(endpoint) for endpoint in islice(able, MAX_STARTS_PER_PASS))

    def _room(self, endpoint: WebhookEndpoint) -> int:
        """What leaves as much free as the tenant has then; twice that where it failed last time: its others go on."""
        taken = self._of_tenant[endpoint.tenant_id] * (2 if endpoint in self._failing else 1)
        return min(BATCH, (self._max_in_flight - len(self._sending) - taken + 1) // 2)

    def _start(self, endpoint: WebhookEndpoint) -> int:
        """How many deliveries were put off, because nothing can be signed for this endpoint."""
        # Before anything is claimed: that counts an attempt.
        try:
            key = decode_secret(decrypt(endpoint.secret))
        except Undecipherable as unreadable:
            return self._put_off(endpoint, str(unreadable))
        except binascii.Error:
            return self._put_off(endpoint, "The endpoint's secret is not base64.")
        deliveries, now = claim_deliveries(endpoint, self._room(endpoint))
        trigger_fault("deliver.claimed")
        try:
            self._transport.send(
                [_build_request(endpoint.url, key, delivery, now) for delivery in deliveries]
            )
        except Exception:
            # Not the endpoint's doing. What was claimed is due again when its lease ends.
            log.exception("webhooks_not_sent", **_log_fields(endpoint))
        else:
            self._sending.update(deliveries)
            self._of_tenant[endpoint.tenant_id] += len(deliveries)
        return 0

    def _put_off(self, endpoint: WebhookEndpoint, why: str) -> int:
        if endpoint not in self._failing:
            log.error("webhooks_not_signed", **_log_fields(endpoint), why=why)
            self._failing.add(endpoint)
        return postpone_deliveries(endpoint, POSTPONE_BATCH, why)

    def _record_ended(self, collect_seconds: float) -> list[tuple[int, int, int]]:
        for result in self._transport.collect(collect_seconds) if self._sending else ():
            self._ended[result.key.endpoint].append(result)
        return [self._record(endpoint, results) for endpoint, results in [*self._ended.items()]]

    def _record(self, endpoint: WebhookEndpoint, results: Sequence[WebhookResult]) -> tuple[int, int, int]:
        trigger_fault("deliver.sent")
        # First: what cannot be recorded holds up nothing, and is due again when its lease ends.
        self._sending.difference_update(result.key for result in self._ended.pop(endpoint))
        self._of_tenant[endpoint.tenant_id] -= len(results)
        (self._failing.discard if any(map(_is_success, results)) else self._failing.add)(endpoint)
        return record_results(endpoint, results)


def list_due_endpoints() -> tuple[list[WebhookEndpoint], float]:
    """The endpoints to which something can be sent now, and the seconds until there is another."""
    queue = _filter_pending_of_outer_endpoint().filter(next_attempt_at__isnull=False)
    first = Subquery(queue.order_by("next_attempt_at").values("next_attempt_at")[:1])
    active = WebhookEndpoint.across_tenants.filter(active=True)
    waiting = list(active.annotate(due_at=first).filter(due_at__isnull=False))
    if not waiting:
        return [], IDLE_SECONDS
    now = db_now()
    later = [(endpoint.due_at - now).total_seconds() for endpoint in waiting if endpoint.due_at > now]
    return [endpoint for endpoint in waiting if endpoint.due_at <= now], min([IDLE_SECONDS, *later])


@transaction.atomic
def claim_deliveries(endpoint: WebhookEndpoint, limit: int) -> tuple[list[WebhookDelivery], datetime]:
    """Takes due deliveries, and counts the attempt: it may be sent even if its sender dies before it can say so."""
    now = db_now()
    taken = _take_due(endpoint, now, limit)
    keys = [delivery.delivery_id for delivery in taken]
    _filter_pending_by_id(endpoint, keys).update(
        attempts=F("attempts") + 1, next_attempt_at=DbNow(DELIVERY_LEASE)
    )
    for delivery in taken:
        delivery.attempts += 1
        delivery.endpoint = endpoint
    return taken, now


@transaction.atomic
def postpone_deliveries(endpoint: WebhookEndpoint, limit: int, why: str) -> int:
    """Due deliveries wait, and no attempt is counted: none is made. How many they were."""
    keys = [delivery.delivery_id for delivery in _take_due(endpoint, db_now(), limit)]
    return _filter_pending_by_id(endpoint, keys).update(
        last_error=why, next_attempt_at=DbNow(UNSIGNED_RETRY_DELAY)
    )


def _take_due(endpoint: WebhookEndpoint, now: datetime, limit: int) -> list[WebhookDelivery]:
    due = _filter_pending(endpoint).filter(next_attempt_at__lte=now).order_by("next_attempt_at")
    return list(due.select_for_update(skip_locked=True)[:limit])


def _build_request(url: str, key: bytes, delivery: WebhookDelivery, now: datetime) -> WebhookRequest:
    body = delivery.body.encode()
    headers = {
        "content-type": "application/cloudevents+json",
        **build_signature_headers(key, str(delivery.event_id), now, body),
    }
    return WebhookRequest(delivery, delivery.tenant_id, url, tuple(headers.items()), body, TIMEOUT_SECONDS)


@transaction.atomic
def record_results(endpoint: WebhookEndpoint, results: Sequence[WebhookResult]) -> tuple[int, int, int]:
    """Writes the outcomes: how many were delivered, are to be tried again, and are given up."""
    lock_endpoint(endpoint)
    now = db_now()
    delivered = [(result.key, "") for result in results if _is_success(result)]
    failed = [(result.key, _format_reason(result)) for result in results if not _is_success(result)]
    gone = any(result.status == HTTP_GONE for result in results)
    most_attempts = 0 if gone else MAX_ATTEMPTS
    exhausted = [(delivery, why) for delivery, why in failed if delivery.attempts >= most_attempts]
    retried = [(delivery, why) for delivery, why in failed if delivery.attempts < most_attempts]
    counts = (
        _finish(DeliveryState.DELIVERED, delivered, now),
        _postpone(retried, now),
        _finish(DeliveryState.EXHAUSTED, exhausted, now),
    )
    promote_next_deliveries(endpoint, {delivery.aggregate_id for delivery, _ in delivered + exhausted}, now)
    if gone:
        # By its own word for good. What waits for it may be much, and is given up by later passes.
        _filter_endpoint(endpoint).update(active=False, disabled_reason=GONE_REASON)
    return counts


def give_up_gone_endpoint(limit: int, busy: Collection[WebhookEndpoint] = ()) -> int:
    """Some of what waits for an endpoint that is gone, in their order; how many they were. What is on its way to one
    that is busy may yet arrive."""
    gone = WebhookEndpoint.across_tenants.filter(active=False, disabled_reason=GONE_REASON)
    # In the order of the index: otherwise SQLite may read the table.
    waiting = (
        _filter_pending_of_outer_endpoint()
        .order_by("aggregate_id", "aggregate_seq")
        .values("delivery_id")[:1]
    )
    found = gone.annotate(waiting=Subquery(waiting)).filter(waiting__isnull=False)
    endpoint = next((endpoint for endpoint in found if endpoint not in busy), None)
    return _give_up(endpoint, limit) if endpoint else 0


@transaction.atomic
def _give_up(endpoint: WebhookEndpoint, limit: int) -> int:
    lock_endpoint(endpoint)
    if _filter_endpoint(endpoint).filter(active=True).exists():
        return 0  # meanwhile it was made active again
    queue = _filter_pending(endpoint).order_by("aggregate_id", "aggregate_seq")[:limit]
    found = list(queue.values_list("delivery_id", "aggregate_id"))
    given_up = _filter_pending_by_id(endpoint, [delivery_id for delivery_id, _ in found]).update(
        state=DeliveryState.EXHAUSTED, last_error=GONE_REASON, finished_at=DbNow(), next_attempt_at=None
    )
    # Should it be made active again before all have been given up, the others go on.
    promote_next_deliveries(endpoint, {aggregate_id for _, aggregate_id in found}, db_now())
    return given_up


def _is_success(result: WebhookResult) -> bool:
    return result.status is not None and 200 <= result.status < 300


def _log_fields(endpoint: WebhookEndpoint) -> dict[str, str]:
    return {"tenant_id": str(endpoint.tenant_id), "endpoint_id": str(endpoint.endpoint_id)}


def _format_reason(result: WebhookResult) -> str:
    return result.error if result.status is None else f"HTTP {result.status}"


def _filter_pending_of_outer_endpoint() -> QuerySet[Any]:
    """Within a query of endpoints."""
    return WebhookDelivery.across_tenants.filter(
        tenant_id=OuterRef("tenant_id"), endpoint_id=OuterRef("endpoint_id"), state=DeliveryState.PENDING
    )


def _filter_pending(endpoint: WebhookEndpoint) -> QuerySet[Any]:
    deliveries = WebhookDelivery.objects.for_tenant(endpoint.tenant_id)
    return deliveries.filter(endpoint_id=endpoint.endpoint_id, state=DeliveryState.PENDING)


def _filter_pending_by_id(endpoint: WebhookEndpoint, deliveries: Sequence[UUID]) -> QuerySet[Any]:
    """Without the endpoint, by whose index SQLite would rather read all that waits for it."""
    those = WebhookDelivery.objects.for_tenant(endpoint.tenant_id).filter(delivery_id__in=deliveries)
    return those.filter(state=DeliveryState.PENDING)


def _filter_endpoint(endpoint: WebhookEndpoint) -> QuerySet[Any]:
    return WebhookEndpoint.objects.for_tenant(endpoint.tenant_id).filter(endpoint_id=endpoint.endpoint_id)


def lock_endpoint(endpoint: WebhookEndpoint) -> None:
    list(_filter_endpoint(endpoint).select_for_update())


# The attempt's number guards them: whoever has been given up for dead and taken over writes nothing.
GUARD = "WHERE tenant_id = %s AND delivery_id = %s AND attempts = %s AND state = 'Pending'"
FINISH = f"UPDATE webhook_deliveries SET state = %s, last_error = %s, finished_at = %s, next_attempt_at = NULL {GUARD}"
POSTPONE = f"UPDATE webhook_deliveries SET last_error = %s, next_attempt_at = %s {GUARD}"
PROMOTE = """UPDATE webhook_deliveries SET next_attempt_at = %s
WHERE tenant_id = %s AND endpoint_id = %s AND aggregate_id = %s AND aggregate_seq = %s
    AND state = 'Pending' AND next_attempt_at IS NULL"""


def _build_guard(delivery: WebhookDelivery) -> tuple[UUID, UUID, int]:
    return delivery.tenant_id, delivery.delivery_id, delivery.attempts


def _finish(state: DeliveryState, deliveries: Sequence[tuple[WebhookDelivery, str]], now: datetime) -> int:
    rows = [(state.value, why, now, *_build_guard(delivery)) for delivery, why in deliveries]
    return execute_rows(FINISH, rows)


def _postpone(deliveries: Sequence[tuple[WebhookDelivery, str]], now: datetime) -> int:
    def again(delivery: WebhookDelivery) -> datetime:
        return now + timedelta(seconds=full_jitter(delivery.attempts, MIN_RETRY_SECONDS, MAX_RETRY_SECONDS))

    return execute_rows(
        POSTPONE, [(why, again(delivery), *_build_guard(delivery)) for delivery, why in deliveries]
    )


def promote_next_deliveries(endpoint: WebhookEndpoint, aggregates: set[UUID], now: datetime) -> None:
    """The next delivery of each aggregate is due."""
    queues = _filter_pending(endpoint).filter(aggregate_id__in=aggregates).values_list("aggregate_id")
    following = queues.annotate(first=Min("aggregate_seq"))
    execute_rows(PROMOTE, [(now, endpoint.tenant_id, endpoint.endpoint_id, *queue) for queue in following])

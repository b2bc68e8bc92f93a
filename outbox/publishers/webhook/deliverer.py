"""Sends webhook deliveries: in order within an aggregate, with retries of their own, each endpoint independently."""

from __future__ import annotations

import binascii
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import count, islice
from typing import Protocol
from urllib.parse import urlsplit
from uuid import UUID

from eventservice.db.errors import tolerate_outage
from eventservice.kernel.faults import trigger_fault
from eventservice.kernel.logging import get_logger
from eventservice.kernel.secrets import Undecipherable, decrypt
from eventservice.kernel.signing import build_signature_headers, decode_secret
from outbox.models import WebhookDelivery, WebhookEndpoint
from outbox.publishers.webhook.delivery_queue import (
    GONE_REASON,
    IDLE_SECONDS,
    DeliveryCounts,
    WebhookResult,
    claim_deliveries,
    give_up_gone_endpoint,
    has_pending_deliveries,
    list_due_endpoints,
    postpone_deliveries,
    record_results,
)

log = get_logger(__name__)

TIMEOUT_SECONDS = 10.0
# How many deliveries are sent to an endpoint at the same time.
BATCH = 32
# How many endpoints a pass begins to send to, each in a short transaction: events wait to be published meanwhile.
MAX_STARTS_PER_PASS = 16
# How many deliveries a pass postpones for an endpoint, and gives up for endpoints that are gone.
POSTPONE_BATCH = 500
GIVE_UP_BATCH = 500
CLOSE_POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class WebhookRequest:
    delivery: WebhookDelivery
    url: str
    headers: Sequence[tuple[str, str]]
    body: bytes
    timeout_seconds: float


class Transport(Protocol):
    """Sends POST requests, many at a time. Each has one result, at the latest after its timeout."""

    def send(self, requests: Sequence[WebhookRequest]) -> None:
        """Start the requests, and return at once."""

    def collect(self, timeout: float) -> Sequence[WebhookResult]:
        """Return the results since the last call. Wait for the first, `timeout` seconds at most."""


@dataclass(frozen=True, slots=True)
class DeliveryResult:
    """The result of one pass. The next is due in `next_wait` seconds, or when an event is published."""

    delivered: int
    retried: int
    exhausted: int
    next_wait: float


class WebhookDeliverer:
    """Sends one batch at a time to each endpoint.

    A tenant takes no more of the capacity than it leaves free: however many slow endpoints it has, some is left for
    other tenants.
    """

    def __init__(
        self, transport: Transport, *, max_in_flight: int = 512, collect_seconds: float = 0.05
    ) -> None:
        self._transport = transport
        self._max_in_flight = max_in_flight
        self._collect_seconds = collect_seconds
        self._in_flight: set[WebhookDelivery] = set()
        self._in_flight_by_tenant: Counter[UUID] = Counter()
        self._unrecorded: defaultdict[WebhookEndpoint, list[WebhookResult]] = defaultdict(list)
        # Endpoints whose last batch failed.
        self._failing: set[WebhookEndpoint] = set()

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    def deliver_once(self) -> DeliveryResult:
        """Send what is due and record what has ended, waiting a moment for results, but not for the slowest."""
        if not self._in_flight and not has_pending_deliveries():
            return DeliveryResult(0, 0, 0, next_wait=IDLE_SECONDS)
        due, next_due = list_due_endpoints()
        counts = [
            DeliveryCounts(retried=self._start_due(due)),
            *self._record_ended(self._collect_seconds),
            DeliveryCounts(exhausted=give_up_gone_endpoint(GIVE_UP_BATCH, self._list_busy())),
        ]
        total = DeliveryCounts(*map(sum, zip(*counts, strict=True)))
        is_idle = not self._in_flight and not any(total)
        next_wait = next_due if is_idle else 0.0
        return DeliveryResult(total.delivered, total.retried, total.exhausted, next_wait)

    def record_ended(self) -> None:
        """Record what has ended, and send nothing. Wait a moment for results if there are any to come."""
        self._record_ended(self._collect_seconds)

    def close(self, grace_seconds: float, heartbeat: Callable[[], None]) -> None:
        """Record what ends within the grace period. The rest is due again when its lease expires.

        `heartbeat` is called meanwhile.
        """
        ends_at = time.monotonic() + grace_seconds
        left = 0.0
        while self._in_flight and left >= 0:
            with tolerate_outage(left):
                self._record_ended(min(left, CLOSE_POLL_SECONDS))
                heartbeat()
            left = ends_at - time.monotonic()

    def _list_busy(self) -> set[WebhookEndpoint]:
        return {delivery.endpoint for delivery in self._in_flight}

    def _start_due(self, due: Sequence[WebhookEndpoint]) -> int:
        """Start batches. Return how many deliveries were postponed.

        In random order, but one endpoint of each tenant comes before the second of any.
        """
        turns: defaultdict[UUID, Iterator[int]] = defaultdict(count)
        drawn = sorted(random.sample(due, len(due)), key=lambda endpoint: next(turns[endpoint.tenant_id]))
        busy = self._list_busy()
        startable = (each for each in drawn if each not in busy and self._get_capacity(each) > 0)
        return sum(self._start(endpoint) for endpoint in islice(startable, MAX_STARTS_PER_PASS))

    def _get_capacity(self, endpoint: WebhookEndpoint) -> int:
        """Return how many deliveries may start: as many as leave free what the tenant has in flight then.

        A failing endpoint leaves twice that, so that the tenant's other endpoints go on.
        """
        taken = self._in_flight_by_tenant[endpoint.tenant_id] * (2 if endpoint in self._failing else 1)
        return min(BATCH, (self._max_in_flight - len(self._in_flight) - taken + 1) // 2)

    def _start(self, endpoint: WebhookEndpoint) -> int:
        """Send a batch to the endpoint. Return how many deliveries were postponed because they cannot be signed."""
        # Before anything is claimed, which counts an attempt.
        try:
            key = decode_secret(decrypt(endpoint.secret))
        except Undecipherable as error:
            return self._postpone(endpoint, str(error))
        except binascii.Error:
            return self._postpone(endpoint, "The endpoint's secret is not base64.")
        deliveries, now = claim_deliveries(endpoint, self._get_capacity(endpoint))
        trigger_fault("deliver.claimed")
        try:
            self._transport.send(
                [_build_request(endpoint.url, key, delivery, now) for delivery in deliveries]
            )
        except Exception:
            # Not the endpoint's fault. What was claimed is due again when its lease expires.
            log.exception("webhooks_not_sent", **_log_fields(endpoint))
        else:
            self._in_flight.update(deliveries)
            self._in_flight_by_tenant[endpoint.tenant_id] += len(deliveries)
        return 0

    def _postpone(self, endpoint: WebhookEndpoint, reason: str) -> int:
        if endpoint not in self._failing:
            log.error("webhooks_not_signed", **_log_fields(endpoint), reason=reason)
            self._failing.add(endpoint)
        return postpone_deliveries(endpoint, POSTPONE_BATCH, reason)

    def _record_ended(self, collect_seconds: float) -> list[DeliveryCounts]:
        for result in self._transport.collect(collect_seconds) if self._in_flight else ():
            self._unrecorded[result.delivery.endpoint].append(result)
        return [self._record(endpoint, results) for endpoint, results in [*self._unrecorded.items()]]

    def _record(self, endpoint: WebhookEndpoint, results: Sequence[WebhookResult]) -> DeliveryCounts:
        trigger_fault("deliver.sent")
        # First, so that results that cannot be recorded hold up nothing: they are due again when their lease expires.
        self._in_flight.difference_update(result.delivery for result in self._unrecorded.pop(endpoint))
        self._in_flight_by_tenant[endpoint.tenant_id] -= len(results)
        if any(result.is_success for result in results):
            self._failing.discard(endpoint)
        else:
            self._failing.add(endpoint)
        counts = record_results(endpoint, results)
        if counts.disabled:
            log.warning(
                "endpoint_disabled", **_log_fields(endpoint), host=_get_host(endpoint.url), reason=GONE_REASON
            )
        return counts


def _build_request(url: str, key: bytes, delivery: WebhookDelivery, now: datetime) -> WebhookRequest:
    body = delivery.body.encode()
    headers = {
        "content-type": "application/cloudevents+json",
        **build_signature_headers(key, str(delivery.event_id), now, body),
    }
    return WebhookRequest(delivery, url, tuple(headers.items()), body, TIMEOUT_SECONDS)


def _get_host(url: str) -> str:
    """Return the host with its port. The rest of the URL may be secret."""
    return urlsplit(url).netloc.rpartition("@")[2]


def _log_fields(endpoint: WebhookEndpoint) -> dict[str, str]:
    return {"tenant_id": str(endpoint.tenant_id), "endpoint_id": str(endpoint.endpoint_id)}

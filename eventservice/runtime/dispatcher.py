"""The dispatcher as a role: it publishes events and sends webhook deliveries, and wakes up when either is written."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import cast
from urllib.parse import urlsplit
from uuid import UUID

from django.conf import settings

from eventservice.db.dialects import get_dialect
from eventservice.db.errors import tolerate_outage
from eventservice.db.leases import Fenced
from eventservice.kernel.logging import get_logger
from execution.attempt_builder import check_target
from execution.egress import Egress
from execution.outcome import Attempt, Outcome, Responded
from execution.redaction import MASK, redact_outcome
from outbox.broker_queue import BrokerSender
from outbox.dispatcher import Dispatcher, DispatchResult
from outbox.models import WebhookDelivery
from outbox.publisher import Broker, Publisher
from outbox.publishers.webhook.deliverer import WebhookDeliverer, WebhookRequest
from outbox.publishers.webhook.delivery_queue import WebhookResult
from timers.membership import Membership, list_publishers
from timers.models import NodeRole

log = get_logger(__name__)

# How much of a webhook's response is kept.
MAX_EXCERPT_BYTES = 2000


class EgressTransport:
    """The outbox's `Transport`: webhooks leave by the same egress, under the same rules, as service calls.

    The egress is started with the first request. `get_allowed_hosts` returns the hosts to which a tenant is restricted.
    """

    def __init__(
        self, start_egress: Callable[[], Egress], get_allowed_hosts: Callable[[UUID], Collection[str]]
    ) -> None:
        self._start_egress = start_egress
        self._get_allowed_hosts = get_allowed_hosts
        self._egress: Egress | None = None
        self._refused: list[Outcome] = []

    def send(self, requests: Sequence[WebhookRequest]) -> None:
        checked = [(request, self._check_host(request)) for request in requests]
        if self._egress is None:
            self._egress = self._start_egress()
        self._egress.send(
            Attempt(r.delivery, "POST", r.url, r.headers, r.body, r.timeout_seconds, r.delivery.tenant_id)
            for r, refusal in checked
            if refusal is None
        )
        self._refused += [refusal for _, refusal in checked if refusal is not None]

    def _check_host(self, request: WebhookRequest) -> Outcome | None:
        # With each delivery, because the tenant's hosts may have changed since the endpoint was created.
        hosts = self._get_allowed_hosts(request.delivery.tenant_id)
        return check_target(request.url, hosts, request.delivery)

    def collect(self, timeout: float) -> list[WebhookResult]:
        outcomes, self._refused = self._refused, []
        if self._egress is not None:
            outcomes += self._egress.collect(0 if outcomes else timeout)
        return [_parse_outcome(outcome) for outcome in outcomes]

    def close(self) -> None:
        if self._egress is not None:
            self._egress.close()


def _parse_outcome(outcome: Outcome) -> WebhookResult:
    delivery = cast(WebhookDelivery, outcome.key)
    outcome = redact_outcome(outcome, (), {}, delivery.endpoint.url)
    if isinstance(outcome, Responded):
        return WebhookResult(delivery, outcome.status, body=_excerpt(outcome.body, delivery.endpoint.url))
    return WebhookResult(delivery, None, f"{outcome.kind}: {outcome.message}")


def _excerpt(body: bytes, url: str) -> str:
    """Return the beginning of a response as text that can be stored. It does not repeat what may be secret in the URL."""
    text = body[:MAX_EXCERPT_BYTES].decode(errors="replace").replace("\0", "")
    parts = urlsplit(url)
    for secret in (parts.query, parts.username, parts.password):
        if secret:
            text = text.replace(secret, MASK)
    return text


class DispatcherRole:
    """Runs a dispatcher and a webhook deliverer: when they look for work, which node they are, how they stop."""

    # How long events gather before the next pass while they keep coming, so that a pass takes the write lock for many.
    GATHER_SECONDS = 0.03
    # How long the release of the partitions waits for what is being sent to brokers: the next owner would send it again.
    FINISH_SECONDS = 1.0
    # How often changes of the database alone make it look for deliveries.
    DELIVERY_SECONDS = 1.0

    def __init__(
        self,
        publishers: Sequence[Publisher],
        transport: EgressTransport,
        max_in_flight: int,
        brokers: Sequence[Broker] = (),
        cluster: str = "",
    ) -> None:
        """`max_in_flight` bounds the webhook deliveries that are in flight. The queues of the `brokers` are emptied."""
        self._publishers = publishers
        self._transport = transport
        self._cluster = cluster
        self._deliverer = WebhookDeliverer(transport, max_in_flight=max_in_flight)
        self._awake = threading.Event()
        self._senders = [BrokerSender(broker, self._awake.set) for broker in brokers]
        self._watch = get_dialect().watch_changes(self._awake.set, max_interval=0.5)
        self._join()

    def _join(self) -> None:
        names = [publisher.name for publisher in self._publishers]
        self._node = Membership(NodeRole.DISPATCHER, self._cluster, names)
        self._node.join()
        self._dispatchers: frozenset[UUID] = frozenset()
        self._dispatcher = Dispatcher(
            self._node.owner_id, self._publishers, live_owners=self._list_dispatchers
        )
        self._heartbeat_at = self._dispatch_at = self._deliver_at = self._delivered_at = 0.0

    def _list_dispatchers(self) -> frozenset[UUID]:
        """Return the live dispatchers. When others are among them than before, compare their publishers."""
        dispatchers = self._node.list_live(NodeRole.DISPATCHER)
        if dispatchers != self._dispatchers:
            self._dispatchers = dispatchers
            publishers = list_publishers(dispatchers)
            if len(publishers) > 1:
                log.error(
                    "different_publishers",
                    publishers=publishers,
                    remedy="set PUBLISHERS to the same value for all processes, restart all clusters, and run"
                    " `manage.py outbox replay --since`",
                )
        return dispatchers

    def step(self, max_wait: float) -> DispatchResult | None:
        """Make one pass if there may be something to do. Otherwise wait, and return None."""
        try:
            self._heartbeat()
        except Fenced:
            # This node was declared dead: others own its partitions now.
            self._join()
        if self._node.is_paused:
            self._rest(max_wait)
            return None
        self._send_to_brokers()
        has_changed = self._watch.has_changed()
        if has_changed:
            # A test event, or deliveries to be sent again: nothing is published with them.
            self._deliver_at = min(self._deliver_at, self._delivered_at + self.DELIVERY_SECONDS)
        if not has_changed and time.monotonic() < self._dispatch_at:
            self._wait(
                min(
                    max_wait,
                    self._watch.pause,
                    self._dispatch_at - time.monotonic(),
                    self._compute_broker_wait(),
                )
            )
            return None
        result = self.dispatch_once()
        if result.published:
            self._watch.record_work()
            self._wait(min(max_wait, self.GATHER_SECONDS))
        return result

    def _rest(self, max_wait: float) -> None:
        """Keep what this node owns while dispatch is paused, and record what it had begun to send. Send nothing."""
        next_heartbeat = self._dispatcher.keep_partitions()
        for sender in self._senders:
            sender.finish(0.0)
        self._deliverer.record_ended()
        self._dispatch_at = self._deliver_at = 0.0  # the first step after the pause looks for everything
        if not self._deliverer.in_flight:
            self._wait(min(max_wait, next_heartbeat, self._heartbeat_at - time.monotonic()))

    def dispatch_once(self) -> DispatchResult:
        # If the pass fails, the next step makes it again, although nothing new may be written until then.
        self._dispatch_at = 0.0
        result = self._dispatcher.dispatch_once()
        if result.published:
            for sender in self._senders:
                sender.expect_events()
        self._send_to_brokers()
        if result.published or time.monotonic() >= self._deliver_at:
            self._deliver_at = time.monotonic() + self._deliverer.deliver_once().next_wait
            self._delivered_at = time.monotonic()
        self._dispatch_at = min(time.monotonic() + result.next_wait, self._deliver_at)
        return result

    def stop(self, grace_seconds: float) -> None:
        """Release the partitions, record the deliveries that end within the grace period, and leave.

        The database may be unavailable, which is how a role lease is lost: each part that fails is left out.
        """
        self._watch.close()
        deadline = time.monotonic() + grace_seconds
        finish_by = min(deadline, time.monotonic() + self.FINISH_SECONDS)
        for sender in self._senders:
            with tolerate_outage():
                sender.finish(finish_by - time.monotonic())
        with tolerate_outage():
            self._dispatcher.release()
        self._deliverer.close(grace_seconds, self._keep_node_alive)
        for sender in self._senders:
            with tolerate_outage():
                sender.close(deadline - time.monotonic())
        with tolerate_outage():
            self._node.leave()
        self._transport.close()

    def count_in_flight(self) -> int:
        return self._deliverer.in_flight

    def count_unrecorded(self) -> int:
        """Return 0: a delivery without a recorded result is sent again, and counts as in flight."""
        return 0

    def empty_outbox(self) -> None:
        """Publish until a pass finds nothing, and send to the brokers until their queues are empty, or none accepts
        events now. While dispatch is paused, do nothing."""
        self._heartbeat()
        if self._node.is_paused:
            return
        while self.dispatch_once().published:
            self._heartbeat()
        while not all(sender.is_resting for sender in self._senders):
            self._heartbeat()
            self._send_to_brokers()
            self._wait(self._compute_broker_wait())

    def _send_to_brokers(self) -> None:
        for sender in self._senders:
            if not sender.compute_wait():
                try:
                    sender.send_once(self._dispatcher.partitions, self._dispatcher.fence)
                except Exception as error:  # noqa: BLE001 - one queue in trouble delays no other publisher
                    sender.postpone(error)

    def _compute_broker_wait(self) -> float:
        return min((sender.compute_wait() for sender in self._senders), default=float("inf"))

    def _keep_node_alive(self) -> None:
        with suppress(Fenced):  # its partitions are released
            self._heartbeat()

    def _heartbeat(self) -> None:
        if time.monotonic() >= self._heartbeat_at:
            self._node.heartbeat(0)
            self._heartbeat_at = time.monotonic() + settings.NODE_LEASE_SECONDS / 4

    def _wait(self, seconds: float) -> None:
        self._awake.wait(max(0.0, seconds))
        self._awake.clear()

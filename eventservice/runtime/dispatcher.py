"""Running the dispatcher, alone or in the cluster: when it looks, how it keeps its place, and how it stops."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

from django.conf import settings

from eventservice.db.change_watch import ChangeWatch
from eventservice.db.errors import tolerate_outage
from eventservice.db.leases import Fenced
from eventservice.runtime.webhook_sender import WebhookSender
from outbox.dispatcher import Dispatcher, DispatchResult
from outbox.publishers.log.publisher import LogPublisher
from outbox.publishers.webhook.delivery import WebhookDeliverer
from outbox.publishers.webhook.publisher import WebhookPublisher
from timers.membership import Membership, list_live_node_ids
from timers.models import NodeRole


class DispatcherRole:
    """The dispatcher as a role: woken by what is written, and gathering for a moment before each pass."""

    # While events keep coming, a pass takes the write lock this seldom, and then for many of them.
    GATHER_SECONDS = 0.03

    def __init__(self, sender: WebhookSender, places: int) -> None:
        """`places`: deliveries that are under way at the most."""
        self._sender = sender
        self._deliverer = WebhookDeliverer(sender, places=places)
        self._awake = threading.Event()
        self._watch = ChangeWatch(self._awake.set, seldom=0.5)
        self._enter()

    def _enter(self) -> None:
        self._node = Membership(NodeRole.DISPATCHER)
        self._node.join()
        self._dispatcher = Dispatcher(
            self._node.owner_id,
            [LogPublisher(), WebhookPublisher()],
            live_owners=lambda: list_live_node_ids(NodeRole.DISPATCHER),
        )
        self._beat_at = self._pass_at = self._deliver_at = 0.0

    def step(self, longest_nap: float) -> DispatchResult | None:
        """One pass, if there may be something to do; else a nap."""
        try:
            self._beat()
        except Fenced:
            # Taken for dead: the partitions are others' now.
            self._enter()
        if not self._watch.changed() and time.monotonic() < self._pass_at:
            self._nap(min(longest_nap, self._watch.pause, self._pass_at - time.monotonic()))
            return None
        published = self.dispatch_once()
        if published.published:
            self._watch.worked()
            self._nap(min(longest_nap, self.GATHER_SECONDS))
        return published

    def dispatch_once(self) -> DispatchResult:
        # A pass that breaks off is still owed: nothing new need be written for the next step to make it.
        self._pass_at = 0.0
        published = self._dispatcher.dispatch_once()
        if published.published or time.monotonic() >= self._deliver_at:
            self._deliver_at = time.monotonic() + self._deliverer.deliver_once().next_wait
        self._pass_at = min(time.monotonic() + published.next_wait, self._deliver_at)
        return published

    def stop(self, grace_seconds: float) -> None:
        """As far as the database allows: it may be away, which is how a seat is lost."""
        self._watch.close()
        with tolerate_outage():
            self._dispatcher.release()
        self._deliverer.close(grace_seconds, self._stay)
        with tolerate_outage():
            self._node.leave()
        self._sender.close()

    def _stay(self) -> None:
        with suppress(Fenced):  # its partitions are released
            self._beat()

    def _beat(self) -> None:
        if time.monotonic() >= self._beat_at:
            self._node.heartbeat(0)
            self._beat_at = time.monotonic() + settings.NODE_LEASE_SECONDS / 4

    def _nap(self, seconds: float) -> None:
        self._awake.wait(max(0.0, seconds))
        self._awake.clear()

"""Where the parts are put together: which egress the engine uses, and by what ways the dispatcher publishes."""

from __future__ import annotations

import threading
import time

from django.conf import settings

from eventservice.kernel.ids import new_id
from eventservice.kernel.wakeup import ChangeWatch
from execution.public import AddressPolicy, Egress, Limits
from orchestration.public import Engine, EngineLimits
from outbox.dispatcher import Dispatched, Dispatcher
from outbox.publishers.log import LogPublisher


def build_egress() -> Egress:
    policy = AddressPolicy(
        allow_private=settings.EGRESS_ALLOW_PRIVATE, allow=frozenset(settings.EGRESS_ALLOW)
    )
    egress = Egress(policy, Limits())
    egress.start()
    return egress


def build_engine() -> Engine:
    limits = EngineLimits(
        batch=settings.ENGINE_BATCH, in_flight=settings.ENGINE_IN_FLIGHT, per_host=settings.ENGINE_PER_HOST
    )
    return Engine(build_egress(), limits)


class DispatcherRole:
    """The dispatcher as a role: woken by what is written, and gathering for a moment before each pass."""

    # While events keep coming, a pass takes the write lock this seldom, and then for many of them.
    GATHER_SECONDS = 0.03

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._awake = threading.Event()
        self._watch = ChangeWatch(self._awake.set)
        self._pass_at = 0.0

    def step(self, longest_nap: float) -> Dispatched | None:
        if not self._watch.changed() and time.monotonic() < self._pass_at:
            self._awake.wait(max(0.0, min(longest_nap, self._watch.pause, self._pass_at - time.monotonic())))
            self._awake.clear()
            return None
        done = self._dispatcher.dispatch_once()
        self._pass_at = time.monotonic() + done.next_wait
        if done.published:
            self._watch.worked()
            time.sleep(min(longest_nap, self.GATHER_SECONDS))
        return done

    def stop(self, grace_seconds: float) -> None:
        self._dispatcher.release()


def build_dispatcher() -> DispatcherRole:
    return DispatcherRole(Dispatcher(new_id(), [LogPublisher()]))

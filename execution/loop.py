"""The event loop of the egress, and the one thread that all its state belongs to.

An attempt goes from the inbox to its destination's queue (until the addresses are known and checked, and a connection is
free), to a transfer, to an outcome. All addresses of a host name are checked before a connection is made to any of them.
"""

from __future__ import annotations

import errno
import math
import resource
import socket
import ssl
from collections import deque
from collections.abc import Callable, Hashable
from contextlib import suppress
from time import monotonic, sleep
from typing import Any, Final

import certifi
import pycurl

from eventservice.kernel.logging import get_logger
from execution.addresses import AddressPolicy
from execution.connections import ConnectionPools, Connections
from execution.destination import Destination
from execution.dns import Lookup, LookupResult, Resolver
from execution.multi import Multi, Waker
from execution.outcome import Attempt, ErrorKind, Limits, Outcome
from execution.transfer import (
    INTERNAL_ERROR,
    InvalidAttempt,
    PreparedAttempt,
    Transfer,
    build_unsent_outcome,
    describe_socket_error,
)
from execution.url_rules import Origin

log = get_logger(__name__)

_SWEEP_SECONDS: Final = 0.1  # the deadline of a waiting attempt is noticed at most this late
_PUBLISH_SECONDS: Final = 0.005  # an outcome waits this long for others, so that they share one lock
_MIN_SECONDS_LEFT: Final = 0.005  # with less time left, a request could be sent but hardly be answered
_OVERDUE_SECONDS: Final = 0.2  # a transfer ends this long after its deadline even if libcurl has lost it
_MIN_FRESH_SECONDS: Final = 0.02  # without a minimum, waiting attempts could cause lookups endlessly
# Attempts that a destination may start in one step of the loop. Those that finish meanwhile leave their connections to
# the next, so a fast server gets few connections, and a slow one as many as it has calls, up to its limit.
_MAX_STARTS_PER_STEP: Final = 32
_MAX_REMEMBERED_DESTINATIONS: Final = 4096
_SLOW_LOOKUP_SECONDS: Final = 0.25  # if a new lookup takes longer, the previous addresses are used meanwhile
_MAX_SPARE_TRANSFERS: Final = 1024
_RESERVED_DESCRIPTORS: Final = 128

_STOPPED: Final = "The service stopped before this attempt was complete."

Batch = tuple[float, list[Attempt]]  # when the attempts were sent, and the attempts


def compute_capacity(limits: Limits) -> int:
    """Return how many connections may be open at once; the process needs some of its file descriptors itself."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return limits.in_flight
    return max(1, min(limits.in_flight, max(soft // 2, soft - _RESERVED_DESCRIPTORS)))


class EgressLoop:
    """Runs attempts until it is stopped. Other threads may only call `submit` and `stop`."""

    def __init__(
        self,
        policy: AddressPolicy,
        limits: Limits,
        lookup: Lookup,
        ca_file: str | None,
        publish: Callable[[list[Outcome]], None],
    ) -> None:
        self._policy = policy
        self._limits = limits
        # The wheel of libcurl knows no CA bundle, so use the system's, or certifi's if the system has none.
        self._ca_file = ca_file or ssl.get_default_verify_paths().cafile or certifi.where()
        self._publish = publish
        self._capacity = compute_capacity(limits)
        self._inbox: deque[Batch | LookupResult] = deque()
        self._waker = Waker()
        self._resolver = Resolver(lookup, limits.dns_threads, self.submit)
        self._destinations: dict[Origin, Destination] = {}
        self._prune_at = _MAX_REMEMBERED_DESTINATIONS
        self._lookups: dict[str, list[Destination]] = {}  # in progress, by host name
        self._ready: set[Destination] = set()
        self._may_start_more = False
        self._active: dict[Any, tuple[Transfer, Destination]] = {}  # by libcurl's handle
        self._spare_transfers: list[Transfer] = []
        self._connections = Connections()
        self._connection_pools = ConnectionPools()
        self._done: list[Outcome] = []
        self._publish_at = self._sweep_at = 0.0
        self._close_idle_at = math.inf
        self._is_stopped = False
        self._multi = Multi(self._waker.fd, self._capacity)

    def submit(self, item: Batch | LookupResult) -> None:
        self._inbox.append(item)
        self._waker.wake()

    def stop(self) -> None:
        self._is_stopped = True
        self._waker.wake()

    def run(self) -> None:
        while not self._is_stopped:
            try:
                self._step()
            except Exception:
                # The attempts in progress end, but the loop goes on.
                log.exception("egress_step_failed")
                self._recover()
        self._shut_down()

    def _step(self) -> None:
        had_events = self._multi.poll(self._compute_wait())
        now = monotonic()
        self._take_finished(now)
        if self._inbox:
            self._take_in(self._inbox.popleft(), now)
        if now >= self._sweep_at:
            self._sweep(now)
        if self._ready:
            self._start_ready(now)
        self._close_idle_connections(now)
        if self._done and (not had_events or now >= self._publish_at):
            self._publish_done(now)

    def _compute_wait(self) -> float | None:
        """Return the seconds until there is something to do even without an event, or None for never."""
        if self._inbox or self._done or self._may_start_more:
            return 0.0
        wake_at = min(self._multi.timer, self._close_idle_at)
        if self._active or self._ready or self._lookups:
            wake_at = min(wake_at, self._sweep_at)
        return max(0.0, wake_at - monotonic()) if wake_at < math.inf else None

    def _publish_done(self, now: float) -> None:
        outcomes, self._done = self._done, []
        self._publish_at = now + _PUBLISH_SECONDS
        self._publish(outcomes)

    # --- from the inbox to a destination's queue ---

    def _take_in(self, item: Batch | LookupResult, now: float) -> None:
        if isinstance(item, LookupResult):
            self._on_lookup_result(item, now)
            return
        sent_at, attempts = item
        for attempt in attempts:
            try:
                self._enqueue(PreparedAttempt(attempt, sent_at, self._limits), now)
            except InvalidAttempt as error:
                self._done.append(build_unsent_outcome(attempt.key, error.kind, str(error), now - sent_at))
            except Exception:
                log.exception("attempt_not_prepared", **attempt.log_fields)
                self._done.append(
                    build_unsent_outcome(attempt.key, ErrorKind.PROTOCOL, INTERNAL_ERROR, now - sent_at)
                )

    def _enqueue(self, prepared: PreparedAttempt, now: float) -> None:
        destination = self._destinations.get(prepared.origin) or self._add_destination(prepared.origin)
        destination.queue.append(prepared)
        if destination.fresh_until > now:
            self._ready.add(destination)
        else:
            self._look_up(destination, {prepared.attempt.tenant}, now)

    def _add_destination(self, origin: Origin) -> Destination:
        if len(self._destinations) >= self._prune_at:
            self._destinations = {key: one for key, one in self._destinations.items() if not one.is_idle}
            self._prune_at = max(_MAX_REMEMBERED_DESTINATIONS, 2 * len(self._destinations))
        destination = Destination(origin)
        if origin.is_literal:
            destination.set_addresses((origin.host,), self._policy, math.inf)
        self._destinations[origin] = destination
        return destination

    def _look_up(self, destination: Destination, tenants: set[Hashable], now: float) -> None:
        """Request a lookup once for each tenant, so that none has to wait in another's queue."""
        name = destination.origin.host
        if destination.lookup_started_at is None:
            destination.lookup_started_at = now
            self._lookups.setdefault(name, []).append(destination)
        for tenant in tenants - destination.lookup_tenants:
            # A name that was resolved before is likely to be resolved quickly, so it goes first.
            self._resolver.request(name, tenant, first=destination.usable_until > now)
        destination.lookup_tenants |= tenants

    def _on_lookup_result(self, result: LookupResult, now: float) -> None:
        for destination in self._lookups.pop(result.host, ()):
            destination.end_lookup(now)
            if result.addresses:
                fresh_seconds = max(self._limits.dns_keep_seconds, _MIN_FRESH_SECONDS)
                destination.set_addresses(result.addresses, self._policy, now + fresh_seconds)
                self._ready.add(destination)
            elif not result.is_final and destination.extend_addresses(now, self._limits.dns_timeout):
                self._ready.add(destination)
            else:
                destination.expire_addresses()
                self._fail_queue(destination, *_explain_lookup(result), now)

    def _check_lookups(self, now: float) -> None:
        """Use known addresses while a lookup is slow, expire attempts, and cancel lookups that nobody waits for."""
        dns_timeout = self._limits.dns_timeout
        for name, destinations in [*self._lookups.items()]:
            for destination in destinations:
                is_slow = (destination.lookup_started_at or now) + _SLOW_LOOKUP_SECONDS <= now
                if destination.queue and is_slow and destination.extend_addresses(now, dns_timeout):
                    self._ready.add(destination)
                self._done += destination.take_expired(now, dns_timeout)
            is_needed = any(
                destination.queue or (destination.lookup_started_at or now) + dns_timeout > now
                for destination in destinations
            )
            if not is_needed and self._resolver.cancel(name):
                for destination in self._lookups.pop(name):
                    destination.clear_lookup()

    # --- from a destination's queue to a transfer ---

    def _start_ready(self, now: float) -> None:
        self._may_start_more = False
        for destination in list(self._ready):
            self._start_from(destination, now)

    def _start_from(self, destination: Destination, now: float) -> None:
        queue = destination.queue
        if destination.refusal:
            self._fail_queue(destination, ErrorKind.EGRESS, destination.refusal, now)
        elif destination.fresh_until <= now and queue:
            self._ready.discard(destination)
            self._look_up(destination, {prepared.attempt.tenant for prepared in queue}, now)
            return
        room = min(self._limits.per_host_connections - destination.active, self._capacity - len(self._active))
        for _ in range(min(room, _MAX_STARTS_PER_STEP, len(queue))):
            self._start(queue.popleft(), destination, now)
        if not queue:
            self._ready.discard(destination)
        elif room > _MAX_STARTS_PER_STEP:
            self._may_start_more = True

    def _start(self, prepared: PreparedAttempt, destination: Destination, now: float) -> None:
        if prepared.deadline - now < _MIN_SECONDS_LEFT:
            self._done.append(prepared.fail(*prepared.explain_timeout("waiting for a free connection"), now))
            return
        try:
            transfer = self._spare_transfers.pop() if self._spare_transfers else self._make_transfer()
            pool = self._connection_pools.get(destination.origin, prepared.attempt.sharers)
            pool.set_addresses(destination.addresses, destination.origin.port)
            transfer.begin(prepared, pool, now)
            self._multi.add(transfer.curl)
        except Exception:
            log.exception("attempt_not_started", **prepared.attempt.log_fields)
            self._done.append(prepared.fail(ErrorKind.PROTOCOL, INTERNAL_ERROR, now))
            return
        destination.active += 1
        self._active[transfer.curl] = transfer, destination

    def _make_transfer(self) -> Transfer:
        return Transfer(
            self._policy, self._limits, self._ca_file, self._connections, self._forget_closed_socket
        )

    def _forget_closed_socket(self, fd: int) -> None:
        self._multi.forget_socket(fd)
        self._connections.forget_socket(fd)

    def _fail_queue(self, destination: Destination, kind: ErrorKind, message: str, now: float) -> None:
        while destination.queue:
            self._done.append(destination.queue.popleft().fail(kind, message, now))

    # --- from a transfer to an outcome ---

    def _take_finished(self, now: float) -> None:
        for curl, code, reason in self._multi.take_finished():
            transfer, destination = self._active.pop(curl)
            self._multi.remove(curl)
            if transfer.needs_new_connection and self._restart(transfer, destination, now):
                continue
            self._done.append(transfer.finish(code, reason, now))
            if code == pycurl.E_COULDNT_CONNECT and not destination.origin.is_literal:
                destination.fresh_until = 0.0  # the name may have moved to other addresses
            destination.active -= 1
            transfer.reset()
            if len(self._spare_transfers) < _MAX_SPARE_TRANSFERS:
                self._spare_transfers.append(transfer)
            else:
                curl.close()

    def _restart(self, transfer: Transfer, destination: Destination, now: float) -> bool:
        """Start a transfer again whose kept connection could not be used. Nothing of the request was written to it."""
        try:
            if not transfer.begin_again(now):
                return False
            self._multi.add(transfer.curl)
        except Exception:
            log.exception("attempt_not_restarted", **transfer.prepared.attempt.log_fields)
            return False
        self._active[transfer.curl] = transfer, destination
        return True

    def _sweep(self, now: float) -> None:
        """End attempts that have waited too long, and transfers that libcurl has lost: deadlines hold without its help."""
        self._sweep_at = now + _SWEEP_SECONDS
        self._check_lookups(now)
        for destination in self._ready:
            self._done += destination.take_expired(now, self._limits.dns_timeout)
        overdue = now - _OVERDUE_SECONDS
        for transfer, destination in [
            pair for pair in self._active.values() if pair[0].prepared.deadline <= overdue
        ]:
            log.warning("attempt_overdue", **transfer.prepared.attempt.log_fields)
            del self._active[transfer.curl]
            self._multi.remove(transfer.curl)
            self._done.append(transfer.time_out(now))
            destination.active -= 1
            transfer.curl.close()

    def _close_idle_connections(self, now: float) -> None:
        """Close kept connections when nothing has happened for a while: libcurl only does so when it is used."""
        if self._active:
            self._close_idle_at = now + self._limits.idle_connection_seconds
        elif now >= self._close_idle_at:
            self._close_idle_at = math.inf
            self._multi.close()
            self._connections.clear()
            self._multi = Multi(self._waker.fd, self._capacity)

    # --- recovery and shutdown ---

    def _recover(self) -> None:
        sleep(_SWEEP_SECONDS)  # so that a persistent error does not use all of the CPU
        try:
            self._end_all(ErrorKind.PROTOCOL, INTERNAL_ERROR)
            self._multi = Multi(self._waker.fd, self._capacity)
        except Exception:
            log.exception("egress_recovery_failed")  # the next step fails, and recovery is tried again

    def _end_all(self, kind: ErrorKind, message: str) -> None:
        """End every attempt that has left the inbox, and close the multi handle."""
        now = monotonic()
        for transfer, _ in self._active.values():
            self._done.append(transfer.interrupt(kind, message, now))
            with suppress(pycurl.error):
                self._multi.remove(transfer.curl)
        self._active.clear()
        for destination in self._destinations.values():
            self._fail_queue(destination, kind, message, now)
        self._destinations, self._lookups, self._ready, self._may_start_more = {}, {}, set(), False
        self._multi.close()
        self._connections.clear()
        self._publish_done(now)

    def _shut_down(self) -> None:
        while self._inbox:
            item = self._inbox.popleft()
            if not isinstance(item, LookupResult):
                self._take_in(item, monotonic())
        self._end_all(ErrorKind.INTERRUPTED, _STOPPED)
        self._resolver.close()
        self._waker.close()


def _explain_lookup(result: LookupResult) -> tuple[ErrorKind, str]:
    error = result.error
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return ErrorKind.CONNECT, describe_socket_error(error)
    if isinstance(error, socket.gaierror) or error is None:
        reason = error.strerror if error else "it has no addresses"
        return ErrorKind.DNS, f"The host name {result.host} could not be resolved: {reason}."
    return ErrorKind.DNS, f"The host name {result.host} could not be looked up ({type(error).__name__})."

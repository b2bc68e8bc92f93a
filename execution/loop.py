"""The thread that everything in progress belongs to, and the event loop that it runs.

An attempt goes: inbox → its host's queue (until the host's addresses are known and judged, and there is a
place) → a transfer → an outcome. Every address that a name resolves to is judged before any is dialled.
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

_SWEEP_SECONDS: Final = 0.1  # how late the deadline of an attempt that still waits may be noticed
_PUBLISH_SECONDS: Final = 0.005  # how long an outcome waits for others, so that one lock serves them all
_LEAST_SECONDS: Final = 0.005  # with less time left, a request could be sent but hardly be answered
_OVERDUE_SECONDS: Final = 0.2  # after its deadline a transfer ends, even should libcurl have forgotten it
_LEAST_DNS_SECONDS: Final = 0.02  # an answer serves this long, or what waits for it would ask again for ever
# Attempts that a host is sent in one step of the loop. Those answered meanwhile leave their connections to the
# next: a fast host gets few connections, a slow one as many as it has calls, up to its limit.
_STEP: Final = 32
_MANY_HOSTS: Final = 4096
_DNS_PATIENCE: Final = 0.25  # after so long without an answer, what the name led to before serves on
_SPARE_TRANSFERS: Final = 1024
_SPARE_DESCRIPTORS: Final = 128

_STOPPED: Final = "The service was stopped before this attempt was done."

Batch = tuple[float, list[Attempt]]  # when they were sent, and they


def compute_capacity(limits: Limits) -> int:
    """Connections at once: no more than the process has descriptors for, beside those of the rest of it."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return limits.in_flight
    return max(1, min(limits.in_flight, max(soft // 2, soft - _SPARE_DESCRIPTORS)))


class EgressLoop:
    """Only `submit` and `stop` are for other threads."""

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
        # The system's CA bundle, or certifi's where the system has none: libcurl's wheel knows neither.
        self._ca_file = ca_file or ssl.get_default_verify_paths().cafile or certifi.where()
        self._publish = publish
        self._capacity = compute_capacity(limits)
        self._inbox: deque[Batch | LookupResult] = deque()
        self._bell = Waker()
        self._resolver = Resolver(lookup, limits.dns_threads, self.submit)
        self._hosts: dict[Origin, Destination] = {}
        self._prune_at = _MANY_HOSTS
        self._asked: dict[str, list[Destination]] = {}
        self._ready: set[Destination] = set()
        self._has_room = False
        self._active: dict[Any, tuple[Transfer, Destination]] = {}  # by their handles
        self._spare: list[Transfer] = []
        self._done: list[Outcome] = []
        self._publish_at = self._next_sweep = 0.0
        self._quiet_at = math.inf
        self._is_stopped = False
        self._multi = Multi(self._bell.fd, self._capacity)

    def submit(self, item: Batch | LookupResult) -> None:
        self._inbox.append(item)
        self._bell.ring()

    def stop(self) -> None:
        self._is_stopped = True
        self._bell.ring()

    def run(self) -> None:
        while not self._is_stopped:
            try:
                self._step()
            except Exception:
                # What was under way ends, the loop goes on.
                log.exception("egress_step_failed")
                self._recover()
        self._end()

    def _step(self) -> None:
        happened = self._multi.poll(self._patience())
        now = monotonic()
        self._harvest(now)
        if self._inbox:
            self._admit(self._inbox.popleft(), now)
        if now >= self._next_sweep:
            self._sweep(now)
        if self._ready:
            self._launch_ready(now)
        self._drop_quiet_connections(now)
        if self._done and (not happened or now >= self._publish_at):
            self._deliver(now)

    def _patience(self) -> float | None:
        """Seconds until there is something to do without being told; None for never."""
        if self._inbox or self._done or self._has_room:
            return 0.0
        moment = min(self._multi.timer, self._quiet_at)
        if self._active or self._ready or self._asked:
            moment = min(moment, self._next_sweep)
        return max(0.0, moment - monotonic()) if moment < math.inf else None

    def _deliver(self, now: float) -> None:
        outcomes, self._done = self._done, []
        self._publish_at = now + _PUBLISH_SECONDS
        self._publish(outcomes)

    # From the inbox to a host's queue.

    def _admit(self, item: Batch | LookupResult, now: float) -> None:
        if isinstance(item, LookupResult):
            self._hear(item, now)
            return
        sent_at, attempts = item
        for attempt in attempts:
            try:
                self._enqueue(PreparedAttempt(attempt, sent_at, self._limits), now)
            except InvalidAttempt as refused:
                self._done.append(
                    build_unsent_outcome(attempt.key, refused.kind, str(refused), now - sent_at)
                )
            except Exception:
                log.exception("attempt_not_prepared", **attempt.log_fields)
                self._done.append(
                    build_unsent_outcome(attempt.key, ErrorKind.PROTOCOL, INTERNAL_ERROR, now - sent_at)
                )

    def _enqueue(self, ticket: PreparedAttempt, now: float) -> None:
        host = self._hosts.get(ticket.origin) or self._meet(ticket.origin)
        host.queue.append(ticket)
        if host.fresh_until > now:
            self._ready.add(host)
        else:
            self._look_up(host, {ticket.attempt.tenant}, now)

    def _meet(self, origin: Origin) -> Destination:
        if len(self._hosts) >= self._prune_at:
            self._hosts = {key: host for key, host in self._hosts.items() if not host.is_idle}
            self._prune_at = max(_MANY_HOSTS, 2 * len(self._hosts))
        host = Destination(origin)
        if origin.is_literal:
            host.learn((origin.host,), self._policy, math.inf)
        self._hosts[origin] = host
        return host

    def _look_up(self, host: Destination, tenants: set[Hashable], now: float) -> None:
        """Asks once for each tenant, so that none has to wait in another's line."""
        name = host.origin.host
        if host.asked_at is None:
            host.asked_at = now
            self._asked.setdefault(name, []).append(host)
        for tenant in tenants - host.asked_for:
            # What was known before is likely to be answered at once.
            self._resolver.ask(name, tenant, first=host.known_until > now)
        host.asked_for |= tenants

    def _hear(self, answer: LookupResult, now: float) -> None:
        for host in self._asked.pop(answer.host, ()):
            host.hear(now)
            if answer.addresses:
                keep_seconds = max(self._limits.dns_keep_seconds, _LEAST_DNS_SECONDS)
                host.learn(answer.addresses, self._policy, now + keep_seconds)
                self._ready.add(host)
            elif not answer.is_final and host.go_on(now, self._limits.dns_timeout):
                self._ready.add(host)
            else:
                host.unlearn()
                self._fail_queue(host, *_explain_lookup(answer), now)

    def _mind_lookups(self, now: float) -> None:
        """Those that take long: what is known goes on, what nobody waits for any more is not looked up."""
        dns_timeout = self._limits.dns_timeout
        for name, hosts in [*self._asked.items()]:
            for host in hosts:
                asked_at = host.asked_at or now
                if host.queue and asked_at + _DNS_PATIENCE <= now and host.go_on(now, dns_timeout):
                    self._ready.add(host)
                self._done += host.take_expired(now, dns_timeout)
            is_waited_for = any(host.queue or (host.asked_at or now) + dns_timeout > now for host in hosts)
            if not is_waited_for and self._resolver.forget(name):
                for host in self._asked.pop(name):
                    host.forget_question()

    # From a host's queue to a transfer.

    def _launch_ready(self, now: float) -> None:
        self._has_room = False
        for host in list(self._ready):
            self._launch_from(host, now)

    def _launch_from(self, host: Destination, now: float) -> None:
        if host.refusal:
            self._fail_queue(host, ErrorKind.EGRESS, host.refusal, now)
        elif host.fresh_until <= now and host.queue:
            self._ready.discard(host)
            self._look_up(host, {ticket.attempt.tenant for ticket in host.queue}, now)
            return
        room = min(self._limits.per_host_connections - host.active, self._capacity - len(self._active))
        for _ in range(min(room, _STEP, len(host.queue))):
            self._launch(host.queue.popleft(), host, now)
        if not host.queue:
            self._ready.discard(host)
        elif room > _STEP:
            self._has_room = True

    def _launch(self, ticket: PreparedAttempt, host: Destination, now: float) -> None:
        if ticket.deadline - now < _LEAST_SECONDS:
            self._done.append(ticket.fail(*ticket.timeout("waiting for a free connection"), now))
            return
        try:
            transfer = self._spare.pop() if self._spare else self._make_transfer()
            transfer.begin(ticket, host.resolve, now)
            self._multi.add(transfer.curl)
        except Exception:
            log.exception("attempt_not_started", **ticket.attempt.log_fields)
            self._done.append(ticket.fail(ErrorKind.PROTOCOL, INTERNAL_ERROR, now))
            return
        host.active += 1
        self._active[transfer.curl] = transfer, host

    def _make_transfer(self) -> Transfer:
        return Transfer(self._policy, self._limits, self._ca_file, lambda fd: self._multi.on_dial(fd))

    def _fail_queue(self, host: Destination, kind: ErrorKind, message: str, now: float) -> None:
        while host.queue:
            self._done.append(host.queue.popleft().fail(kind, message, now))

    # From a transfer to an outcome.

    def _harvest(self, now: float) -> None:
        for curl, code, reason in self._multi.finished():
            transfer, host = self._active.pop(curl)
            self._multi.remove(curl)
            self._done.append(transfer.finish(code, reason, now))
            if code == pycurl.E_COULDNT_CONNECT and not host.origin.is_literal:
                host.fresh_until = 0.0  # the name may have moved
            host.active -= 1
            transfer.forget()
            if len(self._spare) < _SPARE_TRANSFERS:
                self._spare.append(transfer)
            else:
                curl.close()

    def _sweep(self, now: float) -> None:
        """Ends what has waited too long, and what libcurl forgot: the promise does not rest on it alone."""
        self._next_sweep = now + _SWEEP_SECONDS
        self._mind_lookups(now)
        for host in self._ready:
            self._done += host.take_expired(now, self._limits.dns_timeout)
        overdue = now - _OVERDUE_SECONDS
        for transfer, host in [pair for pair in self._active.values() if pair[0].ticket.deadline <= overdue]:
            log.warning("attempt_overdue", **transfer.ticket.attempt.log_fields)
            del self._active[transfer.curl]
            self._multi.remove(transfer.curl)
            self._done.append(transfer.overdue(now))
            host.active -= 1
            transfer.curl.close()

    def _drop_quiet_connections(self, now: float) -> None:
        """Closes kept connections when nothing has been going on: libcurl does so only when it is used."""
        if self._active:
            self._quiet_at = now + self._limits.idle_connection_seconds
        elif now >= self._quiet_at:
            self._quiet_at = math.inf
            self._multi.close()
            self._multi = Multi(self._bell.fd, self._capacity)

    # When something is wrong, and at the end.

    def _recover(self) -> None:
        sleep(_SWEEP_SECONDS)  # whatever is wrong, it must not spin
        try:
            self._abandon(ErrorKind.PROTOCOL, INTERNAL_ERROR)
            self._multi = Multi(self._bell.fd, self._capacity)
        except Exception:
            log.exception("egress_not_started_over")  # it tries again

    def _abandon(self, kind: ErrorKind, message: str) -> None:
        """Ends every attempt that was taken in, and the multi handle with them."""
        now = monotonic()
        for transfer, _ in self._active.values():
            self._done.append(transfer.interrupt(kind, message, now))
            with suppress(pycurl.error):
                self._multi.remove(transfer.curl)
        self._active.clear()
        for host in self._hosts.values():
            self._fail_queue(host, kind, message, now)
        self._hosts, self._asked, self._ready, self._has_room = {}, {}, set(), False
        self._multi.close()
        self._deliver(now)

    def _end(self) -> None:
        while self._inbox:
            item = self._inbox.popleft()
            if not isinstance(item, LookupResult):
                self._admit(item, monotonic())
        self._abandon(ErrorKind.INTERRUPTED, _STOPPED)
        self._resolver.close()
        self._bell.close()


def _explain_lookup(answer: LookupResult) -> tuple[ErrorKind, str]:
    error = answer.error
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return ErrorKind.CONNECT, describe_socket_error(error)
    if isinstance(error, socket.gaierror) or error is None:
        reason = error.strerror if error else "it has no address"
        return ErrorKind.DNS, f"The name {answer.host} could not be resolved: {reason}."
    return ErrorKind.DNS, f"The name {answer.host} could not be looked up ({type(error).__name__})."

"""The engine: joins due timers to HTTP attempts, and their outcomes to the calls.

`poll_once` is one pass: start what is due, wait a little for outcomes, record those that came. The loop around
it belongs to whoever runs it (a slice, a management command, a test).
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

from django.conf import settings
from django.db import DatabaseError, connection, transaction
from django.db.utils import InterfaceError

from eventservice.db.dialects import get_dialect
from eventservice.db.leases import Fenced
from eventservice.db.now import db_now
from eventservice.kernel.faults import trigger_fault
from eventservice.kernel.logging import get_logger
from eventservice.tenants.directory import TenantProfile, get_max_shards, get_profile
from execution.attempt_builder import Signer, build_attempt, check_target
from execution.attempt_log import AttemptKey, list_orphaned_attempts
from execution.egress import Egress
from execution.outcome import Attempt, Errored, Outcome, Responded
from execution.redaction import redact_outcome
from orchestration import lifecycle
from orchestration.engine.capacity import DEFAULT_LIMITS, EngineLimits, InFlight
from orchestration.lifecycle import StartedCall
from timers.membership import Membership, list_node_ids, reap_dead_node
from timers.models import NodeRole
from timers.poller import HeldBack, Poller

log = get_logger(__name__)

# Often enough for three beats to fail before the node is taken for dead.
HEARTBEAT_SECONDS = settings.NODE_LEASE_SECONDS / 4
# Shards that a node lets go of wait so long for the next.
REBALANCE_SECONDS = settings.NODE_LEASE_SECONDS / 8
SWEEP_SECONDS = 5.0
# Somebody has all that they may have in flight: their due timers would be found again and again.
HELD_BACK_POLL_SECONDS = 0.05
MAX_NAP_SECONDS = 1.0
MIN_BATCH_SIZE = 50
MAX_BATCH_SECONDS = 0.2
RETRY_SECONDS = 0.5
WATCHDOG_BATCH_SIZE = 500
# Those that the engine writes, and that grow from nothing to many rows within a minute.
GROWING_TABLES = ("service_calls", "timer_schedules", "http_execution_log", "outbox")
# Results that are written at once: while they are, nothing begins, and the heart does not beat.
MAX_RECORDED_AT_ONCE = 500
MAX_RECORDED_BYTES_AT_ONCE = 4_000_000


@dataclass(frozen=True, slots=True)
class PassResult:
    """What one pass did."""

    started: int
    recorded: int


class Engine:
    def __init__(self, egress: Egress, limits: EngineLimits = DEFAULT_LIMITS) -> None:
        self.egress = egress
        self.limits = limits
        self._batch = min(limits.batch, 2 * MIN_BATCH_SIZE)  # it grows while that is quick
        self.in_flight = InFlight(limits)
        self._unsent: list[tuple[StartedCall, TenantProfile, datetime]] = []  # and committed
        self._unrecorded: list[Outcome] = []
        # Attempts that this process began before it was fenced: their results change no state.
        self._late: set[Hashable] = set()
        self._watch = get_dialect().watch_changes(egress.wake, max_interval=0.1)
        self._look_at = 0.0
        self._due: dict[str, float] = {}
        self._is_late = False  # with its heartbeats
        self._enter(NodeRole.ENGINE)

    # --- one pass ---

    def poll_once(self, longest_nap: float = MAX_NAP_SECONDS) -> PassResult:
        started = recorded = 0
        with self._weathering():
            self._tend()
            self._send_started()
            started = self._start_due() if self._worth_looking() else 0
            recorded = self._record(self.egress.collect(self._nap(longest_nap)))
        return PassResult(started, recorded)

    step = poll_once

    def take_shards(self) -> None:
        """At once, instead of with the next tick: whatever nobody else holds."""
        self._reap()
        self._rebalance()

    def stop(self, grace_seconds: float) -> None:
        """Hand the shards on at once, let the attempts under way end, and leave. What outlasts the grace is
        resolved by whoever finds this node's row expired."""
        deadline = time.monotonic() + grace_seconds
        with self._weathering():
            self.membership.hand_over(len(self.in_flight))
        while (self._unsent or self.in_flight) and time.monotonic() < deadline:
            with self._weathering():
                self.membership.hand_over(len(self.in_flight))  # which beats, and may have failed before
                self._send_started()
                self._record(self.egress.collect(0.1))
        self._record_known()
        self._watch.close()
        self.egress.close()
        if not (self._unsent or self.in_flight):
            with self._weathering():
                self.membership.leave()

    # --- starting ---

    def _worth_looking(self) -> bool:
        changed = self._watch.has_changed()
        return changed or time.monotonic() >= self._look_at

    def _start_due(self) -> int:
        limit = min(self._batch, self.in_flight.places)
        if limit < 1:
            self._look_in(HELD_BACK_POLL_SECONDS)
            return 0
        held_back = self.in_flight.held_back()
        due_in = self.poller.seconds_until_due()
        if due_in is None or due_in > 0:
            # No longer: a machine that was suspended wakes with another time.
            self._look_in(MAX_NAP_SECONDS if due_in is None else min(due_in, MAX_NAP_SECONDS))
            return 0
        begun = time.monotonic()
        started = self._start(limit, held_back)
        self._size_batch(len(started), time.monotonic() - begun)
        self._look_in(0.0 if started else HELD_BACK_POLL_SECONDS)
        return len(started)

    def _size_batch(self, started: int, seconds: float) -> None:
        """Whoever becomes due while a batch is started waits for its end: where that takes long, it is made smaller."""
        if seconds > MAX_BATCH_SECONDS:
            self._batch = max(MIN_BATCH_SIZE, min(self._batch, started) // 2)
        elif started == self._batch and seconds < MAX_BATCH_SECONDS / 3:
            self._batch *= 2
        self._batch = min(self._batch, self.limits.batch)

    def _start(self, limit: int, held_back: HeldBack) -> list[StartedCall]:
        with transaction.atomic():
            due = self.poller.claim_due(limit, held_back, self.in_flight.batch().admit)
            started = lifecycle.start(due, self.membership.owner_id)
            # Read while all of it can still be undone: what is committed must also be sent.
            now = db_now()
            unsent = [(call, get_profile(call.key.tenant_id), now) for call in started]
            trigger_fault("start.before_commit")
        trigger_fault("start.committed")
        self._unsent = unsent
        self._send_started()
        if started:
            self._watch.record_work()
        return started

    def _send_started(self) -> None:
        if not self._unsent:
            return
        if self.membership.lease_may_have_ended:
            # What was started before a long sleep may be another's by now, or canceled: then it is not sent.
            self._beat()
        started, self._unsent = self._unsent, []
        attempts = []
        for call, tenant, now in started:
            self.in_flight.add(call, tenant.secret_headers)
            attempt = self._attempt(call, tenant, now)
            if isinstance(attempt, Errored):
                self._unrecorded.append(attempt)
            else:
                attempts.append(attempt)
        self.egress.send(attempts)
        trigger_fault("start.sent")

    def _attempt(self, call: StartedCall, tenant: TenantProfile, now: datetime) -> Attempt | Errored:
        key = call.key.execution_id
        signer = Signer(tenant.signing_secret) if tenant.signing_secret else None
        return check_target(call.request.url, tenant.allowed_hosts, key) or build_attempt(
            call.request,
            key=key,
            tenant_id=call.key.tenant_id,
            service_call_id=call.key.service_call_id,
            attempt=call.attempt,
            timeout_seconds=call.timeout_seconds,
            signer=signer,
            now=now,
        )

    def _look_in(self, seconds: float) -> None:
        self._look_at = time.monotonic() + seconds

    def _nap(self, longest: float) -> float:
        if self._unrecorded:
            return 0.0
        return max(
            0.0, min(longest, self._watch.pause, min(self._look_at, self._due["beat"]) - time.monotonic())
        )

    # --- recording ---

    def _record(self, outcomes: Iterable[Outcome]) -> int:
        # Kept until they are written, and nothing is asked of the database before that: while it is away no result is
        # lost.
        self._unrecorded += [self._without_secrets(outcome) for outcome in outcomes]
        piece = self._piece()
        if not piece:
            return 0
        ended = [(self.in_flight[outcome.key].key, outcome) for outcome in piece]
        trigger_fault("finish.before")
        lifecycle.close_late(end for end in ended if end[0].execution_id in self._late)
        lifecycle.finish(
            [end for end in ended if end[0].execution_id not in self._late], self.membership.fence
        )
        trigger_fault("finish.committed")
        del self._unrecorded[: len(piece)]
        for key, _ in ended:
            self._late.discard(key.execution_id)
            self.in_flight.remove(key.execution_id)
        self._look_in(0.0)  # a retry may be due before anything that was looked for
        self._watch.record_work()
        return len(ended)

    def _record_known(self) -> None:
        """At the end: whatever the grace was, no result is thrown away that could be written."""
        with self._weathering():
            self._record(self.egress.collect(0.0))
        with self._weathering():  # fenced or not
            while self._unrecorded:
                self._record(())

    def _piece(self) -> list[Outcome]:
        size = 0
        for count, outcome in enumerate(self._unrecorded[:MAX_RECORDED_AT_ONCE], 1):
            size += len(outcome.body) if isinstance(outcome, Responded) else 0
            if size > MAX_RECORDED_BYTES_AT_ONCE:
                return self._unrecorded[:count]
        return self._unrecorded[:MAX_RECORDED_AT_ONCE]

    def _without_secrets(self, outcome: Outcome) -> Outcome:
        call = self.in_flight[outcome.key]
        return redact_outcome(outcome, call.secret_headers, call.headers)

    # --- membership and the watchdog ---

    def _enter(self, role: NodeRole) -> None:
        self.membership = Membership(role)
        self.poller = Poller(self.membership.leases)
        self.membership.join()

    def _tend(self) -> None:
        if self._time_to("beat", HEARTBEAT_SECONDS):
            self._beat()
        if self._time_to("rebalance", REBALANCE_SECONDS):
            self._rebalance()
            if self.membership.sees_dead_nodes and self._time_to("reap", 0.0):
                self.take_shards()
        if self._time_to("sweep", SWEEP_SECONDS):
            self._sweep()
            get_dialect().gather_first_statistics(GROWING_TABLES)

    def _beat(self) -> None:
        trigger_fault("beat")
        was_late, self._is_late = self._is_late, self.membership.heartbeat(len(self.in_flight))
        if self._is_late and not was_late:
            # The database was away, or its clock was set: the others have as long as a lease to beat too, and to
            # write what they know.
            self._due["reap"] = self._due["sweep"] = time.monotonic() + settings.NODE_LEASE_SECONDS

    def _reap(self) -> None:
        while (node := reap_dead_node(by=self.membership.owner_id)) is not None:
            trigger_fault("reap.committed")
            log.warning("node_reaped", node=str(node))
            self._due["sweep"] = 0.0

    def _rebalance(self) -> None:
        if self.membership.rebalance(get_max_shards()):
            self._look_in(0.0)

    def _sweep(self) -> None:
        """Resolve what nodes that are no more have left behind, and what is overdue: a batch a pass, for meanwhile
        heartbeats and calls go on."""
        resolved = self._resolve(list_orphaned_attempts(list_node_ids, WATCHDOG_BATCH_SIZE))
        # Those of its own are left to their egress, and must not hide the others.
        resolved += self._resolve(lifecycle.list_overdue_attempts(WATCHDOG_BATCH_SIZE + len(self.in_flight)))
        if resolved:
            self._due["sweep"] = 0.0

    def _resolve(self, keys: Iterable[AttemptKey]) -> int:
        mine = set(self.in_flight.ids) - self._late
        lost = [key for key in keys if key.execution_id not in mine][:WATCHDOG_BATCH_SIZE]
        if lost:
            moved = lifecycle.resolve_interrupted(lost)
            self._look_in(0.0)
            log.warning("attempts_interrupted", attempts=len(lost), calls=moved)
        return len(lost)

    def _time_to(self, what: str, every: float) -> bool:
        now = time.monotonic()
        if now < self._due.get(what, 0.0):
            return False
        self._due[what] = now + every
        return True

    # --- trouble ---

    @contextmanager
    def _weathering(self) -> Iterator[None]:
        """Neither the loss of its node nor that of the database ends an engine: it has attempts in flight."""
        try:
            try:
                yield
            except Fenced:
                self._after_fence()
        except (DatabaseError, InterfaceError) as broken:
            self._endure(broken)

    def _after_fence(self) -> None:
        """Some shards are others' now, or this node was taken for dead and reaped; then it begins anew."""
        try:
            self._beat()
            self.membership.leases.renew()
        except Fenced:
            log.error("node_fenced", node=str(self.membership.owner_id), in_flight=len(self.in_flight))
            self._late.update(self.in_flight.ids)
            self._unsent = []  # whoever resolves what this node has left behind sees to them
            # One that was about to leave takes no shards any more.
            self._enter(self.membership.role)
            self._due.clear()

    def _endure(self, broken: Exception) -> None:
        """The database is away: keep what is known, and try again soon."""
        log.error("database_trouble", error=str(broken), in_flight=len(self.in_flight))
        connection.close_if_unusable_or_obsolete()
        self._due["beat"] = 0.0  # before all else
        self._look_in(RETRY_SECONDS)
        time.sleep(RETRY_SECONDS)


def resolve_stuck_calls() -> int:
    """What the watchdog does, on demand: calls past their deadline, and those of nodes that are no more."""
    resolved = 0
    for find in (lifecycle.list_overdue_attempts, lambda limit: list_orphaned_attempts(list_node_ids, limit)):
        while keys := find(WATCHDOG_BATCH_SIZE):
            resolved += lifecycle.resolve_interrupted(keys)
    return resolved

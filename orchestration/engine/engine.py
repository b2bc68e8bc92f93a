"""The engine starts the calls of due timers as HTTP attempts, and records the attempts' outcomes.

`poll_once` is one pass: start what is due, wait a little for outcomes, record those that came. The loop around it belongs
to whoever runs the engine (a slice, a management command, a test).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import UUID

from django.conf import settings
from django.db import DatabaseError, connection, transaction
from django.db.utils import InterfaceError

from eventservice.db.dialects import get_dialect
from eventservice.db.dialects.change_watch import ChangeWatch
from eventservice.db.leases import Fenced
from eventservice.kernel.boot_time import read_boot_time
from eventservice.kernel.faults import trigger_fault
from eventservice.kernel.logging import get_logger
from eventservice.tenants.directory import TenantIds, get_max_shards
from execution.attempt_builder import Signer, build_attempt, check_target
from execution.attempt_log import AttemptKey, drop_attempts_of, list_orphaned_attempts
from execution.egress import Egress
from execution.outcome import Attempt, Errored, ErrorKind, Outcome, Responded, Timings
from execution.redaction import redact_outcome
from orchestration import lifecycle
from orchestration.engine.attempt_totals import AttemptTotals
from orchestration.engine.capacity import DEFAULT_LIMITS, EngineLimits, InFlight
from orchestration.engine.memory import MAX_FAILURES, MemoryGuard, is_out_of_memory
from orchestration.feeder.thread import FeederThread
from orchestration.lifecycle import StartedCall
from timers.membership import Membership, list_node_ids, reap_dead_node
from timers.models import NodeRole
from timers.poller import Poller
from timers.port import HeldBack, Timer

log = get_logger(__name__)

# Three heartbeats may fail before the node's lease ends.
HEARTBEAT_SECONDS = settings.NODE_LEASE_SECONDS / 4
# The shards that a node releases wait this long, at most, for their next owner.
REBALANCE_SECONDS = settings.NODE_LEASE_SECONDS / 8
SWEEP_SECONDS = 5.0
# While a tenant or host is at its in-flight limit, every search finds the due timers that have to wait.
HELD_BACK_POLL_SECONDS = 0.05
# Periodic tasks are run this late at most.
MAX_NAP_SECONDS = 1.0
MIN_BATCH_SIZE = 50
MAX_BATCH_SECONDS = 0.2
RETRY_SECONDS = 0.5
WATCHDOG_BATCH_SIZE = 500
# The engine writes these tables, and they may grow from empty to many rows within a minute.
GROWING_TABLES = ("service_calls", "timer_schedules", "http_execution_log", "outbox")
# Outcomes that are written in one transaction. Meanwhile nothing starts, and no heartbeat is sent.
MAX_RECORDED_AT_ONCE = 500
MAX_RECORDED_BYTES_AT_ONCE = 4_000_000


@dataclass(frozen=True, slots=True)
class PassResult:
    """How many calls one pass started, and how many outcomes it recorded."""

    started: int
    recorded: int


class Engine:
    """One engine of this process. `clock`, `sleep` and `watch` are arguments so that tests can do without waiting."""

    def __init__(
        self,
        egress: Egress,
        limits: EngineLimits = DEFAULT_LIMITS,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        watch: ChangeWatch | None = None,
        poll_seconds: float = MAX_NAP_SECONDS,
        cluster: str = "",
        feeders: Sequence[FeederThread] = (),
    ) -> None:
        """`poll_seconds` is the longest time between two looks for due timers. `feeders` stop with the engine."""
        self.egress = egress
        self.limits = limits
        self.poll_seconds = poll_seconds
        self.cluster = cluster
        self._feeders = feeders
        self.in_flight = InFlight(limits)
        self._clock = clock
        self._sleep = sleep
        self._watch = watch or get_dialect().watch_changes(egress.wake, poll_seconds)
        self._batch_size = min(limits.max_batch, 2 * MIN_BATCH_SIZE)  # it grows while batches start quickly
        self._unsent: list[StartedCall] = []  # committed, and not yet given to egress
        self._unconfirmed: list[StartedCall] = []  # perhaps committed, and not sent
        self._collected: deque[Outcome] = deque()  # not redacted yet
        self._totals = AttemptTotals()
        self._unrecorded: list[Outcome] = []
        self._memory = MemoryGuard(clock)
        self._max_recorded = MAX_RECORDED_AT_ONCE  # less while memory is short
        self._unbuilt = 0  # how often the next attempt to send could not be built for lack of memory
        # Attempts that this process made as a node that was declared dead: others may have resolved them.
        self._unclaimed: list[AttemptKey] = []
        self._look_at = 0.0
        self._due: dict[str, float] = {}  # when each periodic task is due
        self._heartbeat_was_late = False
        self._join(NodeRole.ENGINE)

    # --- one pass ---

    def poll_once(self, max_wait: float = MAX_NAP_SECONDS) -> PassResult:
        """Start due calls, wait at most `max_wait` seconds for outcomes, and record those that came."""
        started = recorded = 0
        with self._surviving_trouble():
            self._run_periodic_tasks()
            self._send_started()
            started = self._start_due() if self._should_look() else 0
            recorded = self._record(self.egress.collect(self._compute_nap(max_wait)))
        return PassResult(started, recorded)

    step = poll_once

    def take_shards(self) -> None:
        """Claim this node's share of the shards now, instead of at the next rebalance."""
        self._reap_dead_nodes()
        self._rebalance()

    def stop(self, grace_seconds: float) -> None:
        """Release the shards at once, wait for the attempts in flight, and leave. Attempts that outlast the grace are
        resolved by the node that finds this one's lease expired."""
        deadline = self._clock() + grace_seconds
        for feeder in self._feeders:
            feeder.stop()
        with self._surviving_trouble():
            self.membership.hand_over(len(self.in_flight))
        while self._has_begun and self._clock() < deadline:
            with self._surviving_trouble():
                self.membership.hand_over(
                    len(self.in_flight)
                )  # it is a heartbeat too, and may have failed before
                self._send_started()
                self._record(self.egress.collect(0.1))
        self._record_all()
        for feeder in self._feeders:
            feeder.join(max(0.0, deadline - self._clock()))
        self._watch.close()
        self.egress.close()
        if not self._has_begun:
            with self._surviving_trouble():
                self.membership.leave()

    @property
    def _has_begun(self) -> bool:
        """Whether there are calls that this process has started and not finished."""
        return bool(self._unsent or self._unconfirmed or self.in_flight)

    def count_in_flight(self) -> int:
        """Return how many attempts have started and are not recorded."""
        return len(self._unsent) + len(self._unconfirmed) + len(self.in_flight)

    def count_unrecorded(self) -> int:
        """Return how many outcomes are known and not recorded."""
        return len(self._collected) + len(self._unrecorded)

    # --- starting ---

    def _should_look(self) -> bool:
        changed = self._watch.has_changed()
        return changed or self._clock() >= self._look_at

    def _start_due(self) -> int:
        if self.membership.is_paused:
            self._look_again_in(REBALANCE_SECONDS)
            return 0
        limit = min(self._batch_size, self.in_flight.free)
        if limit < 1:
            self._look_again_in(HELD_BACK_POLL_SECONDS)
            return 0
        held_back = self._memory.restrict(self.in_flight.find_held_back())
        due_in = self.poller.seconds_until_due()
        if due_in is None or due_in > 0:
            # Also if the next timer is far off: nothing may tell of a new one, and the clock of a machine that was
            # suspended jumps when it wakes.
            self._look_again_in(self.poll_seconds if due_in is None else min(due_in, self.poll_seconds))
            return 0
        started_at = self._clock()
        started = self._start(limit, held_back)
        self._adjust_batch_size(len(started), self._clock() - started_at)
        self._look_again_in(0.0 if started else HELD_BACK_POLL_SECONDS)
        return len(started)

    def _adjust_batch_size(self, started: int, seconds: float) -> None:
        """A call that becomes due while a batch starts has to wait for its end, so slow batches are made smaller."""
        if seconds > MAX_BATCH_SECONDS:
            self._batch_size = max(MIN_BATCH_SIZE, min(self._batch_size, started) // 2)
        elif started == self._batch_size and seconds < MAX_BATCH_SECONDS / 3:
            self._batch_size *= 2
        self._batch_size = min(self._batch_size, self.limits.max_batch)

    def _start(self, limit: int, held_back: HeldBack) -> list[StartedCall]:
        due: list[Timer] = []
        started: list[StartedCall] = []
        begun_at = read_boot_time()
        try:
            with transaction.atomic():
                admit = self._memory.guard(self.in_flight.open_batch().admit)
                due = self.poller.claim_due(limit, held_back, admit)
                started = lifecycle.start(due, self.membership.owner_id, begun_at=begun_at)
                trigger_fault("start.before_commit")
        except (DatabaseError, InterfaceError, MemoryError) as error:
            # The answer to the commit may be all that was lost.
            self._unconfirmed += started
            if not is_out_of_memory(error):
                raise
        else:
            self._memory.record_fit(started)
            return self._send(started)
        # Not in the handler, where the traceback keeps what did not fit.
        self._start_less(due, limit)
        return []

    def _send(self, started: list[StartedCall]) -> list[StartedCall]:
        trigger_fault("start.committed")
        self._unsent += started
        self._send_started()
        if started:
            self._watch.record_work()
        return started

    def _start_less(self, due: Sequence[Timer], limit: int) -> None:
        """Let the next batch be smaller, because this one did not fit into memory. A call that fits never, fails."""
        connection.close()  # possibly in the middle of an answer
        too_large = self._memory.record_failure(due, limit)
        log.warning("batch_exceeds_memory", calls=len(due), next_batch=self._memory.max_calls)
        if too_large is None:
            return
        with transaction.atomic():
            claimed = self.poller.claim_again(too_large)
            started = lifecycle.start(claimed, self.membership.owner_id, with_bodies=False)
        self._memory.forget(too_large)
        self.in_flight.add(started)
        self._unrecorded += [_build_memory_error(call) for call in started]

    def _send_started(self) -> None:
        self._reclaim()
        if not self._unsent:
            return
        if self.membership.lease_may_have_ended:
            # Calls that were started before a long pause may belong to another node by now, or be canceled: then the
            # heartbeat raises Fenced, and they are not sent.
            self._heartbeat()
        attempts, refused = self._build_attempts()
        self.egress.send(attempts)
        self._unrecorded += refused
        self.in_flight.add(self._unsent[: len(attempts) + len(refused)])
        del self._unsent[: len(attempts) + len(refused)]
        trigger_fault("start.sent")

    def _build_attempts(self) -> tuple[list[Attempt], list[Errored]]:
        """Build the attempts of the calls to send, the first ones if memory does not suffice for all."""
        attempts: list[Attempt] = []
        refused: list[Errored] = []
        for call in self._unsent:
            try:
                attempt = _build_attempt(call)
            except MemoryError:
                self._unbuilt += 1
                if attempts or refused:
                    break
                if self._unbuilt < MAX_FAILURES:
                    raise
                attempt = _build_memory_error(call)
            self._unbuilt = 0
            if isinstance(attempt, Errored):
                refused.append(attempt)
            else:
                attempts.append(attempt)
        return attempts, refused

    def _reclaim(self) -> None:
        """Find out which attempts are still this node's, after it was declared dead or a commit was not confirmed."""
        while self._unclaimed:
            self._reclaim_batch(self._unclaimed[:WATCHDOG_BATCH_SIZE], sent=True)
            del self._unclaimed[:WATCHDOG_BATCH_SIZE]
        if self._unconfirmed:
            own = self._reclaim_batch([call.key for call in self._unconfirmed], sent=False)
            self._unsent += [call for call in self._unconfirmed if call.key.execution_id in own]
            self._unconfirmed = []

    def _reclaim_batch(self, keys: Sequence[AttemptKey], *, sent: bool) -> set[UUID]:
        own = lifecycle.reclaim(keys, self.membership.owner_id, self.membership.fence, sent=sent)
        log.warning("attempts_reclaimed", attempts=len(own), lost=len(keys) - len(own))
        return own

    def _look_again_in(self, seconds: float) -> None:
        self._look_at = self._clock() + seconds

    def _compute_nap(self, max_wait: float) -> float:
        if self._collected or self._unrecorded:
            return 0.0
        next_task = min(self._look_at, self._due["heartbeat"])
        return max(0.0, min(max_wait, MAX_NAP_SECONDS, self._watch.pause, next_task - self._clock()))

    # --- recording ---

    def _record(self, outcomes: Iterable[Outcome]) -> int:
        # Kept here until they are written, before the database is asked anything: no outcome is lost while it is
        # unavailable.
        self._collected += outcomes
        while self._collected:
            self._unrecorded.append(self._redact(self._collected[0]))
            self._collected.popleft()
        batch = self._select_recordable()
        if not batch:
            return 0
        try:
            return self._record_batch(batch)
        except MemoryError:
            self._max_recorded = max(1, len(batch) // 2)
            raise

    def _record_batch(self, batch: Sequence[Outcome]) -> int:
        ended = [(self.in_flight[outcome.key].key, outcome) for outcome in batch]
        trigger_fault("finish.before")
        lifecycle.finish(ended, self.membership.fence)
        trigger_fault("finish.committed")
        del self._unrecorded[: len(batch)]
        self._totals.count(batch)
        self.in_flight.remove(key.execution_id for key, _ in ended)
        self._max_recorded = min(2 * self._max_recorded, MAX_RECORDED_AT_ONCE)
        self._look_again_in(0.0)  # a retry may be due before any timer that was found
        self._watch.record_work()
        return len(ended)

    def _record_all(self) -> None:
        """Write all outcomes that are known when the engine stops, whatever the grace was."""
        with self._surviving_trouble():
            self._record(self.egress.collect(0.0))
        with self._surviving_trouble():  # again, because this node may just have found out that it is fenced
            while self._collected or self._unrecorded:
                self._record(())
            self._totals.flush()

    def _select_recordable(self) -> list[Outcome]:
        size = 0
        for count, outcome in enumerate(self._unrecorded[: self._max_recorded], 1):
            size += len(outcome.body) if isinstance(outcome, Responded) else 0
            if size > MAX_RECORDED_BYTES_AT_ONCE:
                return self._unrecorded[:count]
        return self._unrecorded[: self._max_recorded]

    def _redact(self, outcome: Outcome) -> Outcome:
        call = self.in_flight[outcome.key]
        return redact_outcome(outcome, call.tenant.secret_headers, call.request.headers, call.request.url)

    # --- membership and the watchdog ---

    def _join(self, role: NodeRole) -> None:
        self.membership = Membership(role, self.cluster)
        self.poller = Poller(self.membership.leases, TenantIds())
        self.membership.join()

    def _run_periodic_tasks(self) -> None:
        if self._is_time_to("heartbeat", HEARTBEAT_SECONDS):
            self._heartbeat()
        if self._is_time_to("rebalance", REBALANCE_SECONDS):
            self._rebalance()
            if self.membership.sees_dead_nodes and self._is_time_to("reap", 0.0):
                self.take_shards()
        if self._is_time_to("sweep", SWEEP_SECONDS):
            self._resolve_lost_attempts()
            get_dialect().gather_first_statistics(GROWING_TABLES)
            self._totals.flush()

    def _heartbeat(self) -> None:
        trigger_fault("beat")
        was_late = self._heartbeat_was_late
        self._heartbeat_was_late = self.membership.heartbeat(len(self.in_flight))
        if self._heartbeat_was_late and not was_late:
            # The database was unavailable, or its clock was set. The other nodes get as long as a lease to send their
            # heartbeats, and to record what they know.
            self._due["reap"] = self._due["sweep"] = self._clock() + settings.NODE_LEASE_SECONDS

    def _reap_dead_nodes(self) -> None:
        while reap_dead_node(by=self.membership.owner_id) is not None:
            trigger_fault("reap.committed")
            self._due["sweep"] = 0.0

    def _rebalance(self) -> None:
        was_paused = self.membership.is_paused
        has_claimed = self.membership.rebalance(get_max_shards())
        if has_claimed or (was_paused and not self.membership.is_paused):
            self._look_again_in(0.0)

    def _resolve_lost_attempts(self) -> None:
        """Resolve the attempts of nodes that are gone, and overdue ones: one batch a pass, so that heartbeats and calls
        go on meanwhile."""
        resolved = self._resolve(list_orphaned_attempts(list_node_ids, WATCHDOG_BATCH_SIZE), resolve_orphaned)
        # Overdue attempts of other nodes are left to them: if they are dead, they are reaped. Their calls may be past
        # the deadline only because the clock was set forward. This engine's own are left to its egress, and must not
        # crowd out the others.
        others = [node for node in list_node_ids() if node != self.membership.owner_id]
        overdue = lifecycle.list_overdue_attempts(WATCHDOG_BATCH_SIZE + len(self.in_flight))
        resolved += self._resolve(drop_attempts_of(others, overdue), lifecycle.resolve_interrupted)
        if resolved:
            self._due["sweep"] = 0.0

    def _resolve(self, keys: Iterable[AttemptKey], resolve: Callable[[Sequence[AttemptKey]], int]) -> int:
        own = {*self.in_flight.ids, *(call.key.execution_id for call in self._unsent + self._unconfirmed)}
        lost = [key for key in keys if key.execution_id not in own][:WATCHDOG_BATCH_SIZE]
        if lost:
            moved = resolve(lost)
            self._look_again_in(0.0)
            log.warning("attempts_interrupted", attempts=len(lost), calls=moved)
        return len(lost)

    def _is_time_to(self, task: str, every: float) -> bool:
        now = self._clock()
        if now < self._due.get(task, 0.0):
            return False
        self._due[task] = now + every
        return True

    # --- trouble ---

    @contextmanager
    def _surviving_trouble(self) -> Iterator[None]:
        """Go on when the node is fenced or the database fails: the engine has attempts in flight."""
        try:
            try:
                yield
            except Fenced:
                self._recover_from_fence()
        except (DatabaseError, InterfaceError) as error:
            self._wait_for_database(error)
        except MemoryError as error:
            connection.close()  # possibly in the middle of an answer
            log.exception("memory_short")
            self._wait_for_database(error)

    def _recover_from_fence(self) -> None:
        """Renew what is still this node's. If it was declared dead and reaped, join again as a new node."""
        try:
            self._heartbeat()
            self.membership.leases.renew()
        except Fenced:
            log.error("node_fenced", node=str(self.membership.owner_id), in_flight=len(self.in_flight))
            # Nobody may have resolved them yet.
            self._unclaimed = [self.in_flight[execution_id].key for execution_id in self.in_flight.ids]
            self._unconfirmed += self._unsent
            self._unsent = []
            self._join(self.membership.role)  # a node that was leaving takes no shards again
            self._due.clear()

    def _wait_for_database(self, error: Exception) -> None:
        """Keep the outcomes that are known, and try again soon."""
        log.error("database_trouble", error=str(error), in_flight=len(self.in_flight))
        connection.close_if_unusable_or_obsolete()
        self._due["heartbeat"] = 0.0  # before anything else
        self._look_again_in(RETRY_SECONDS)
        self._sleep(RETRY_SECONDS)


def _build_attempt(call: StartedCall) -> Attempt | Errored:
    key, tenant = call.key, call.tenant
    return check_target(call.request.url, tenant.allowed_hosts, key.execution_id) or build_attempt(
        call.request,
        key=key.execution_id,
        tenant_id=key.tenant_id,
        service_call_id=key.service_call_id,
        attempt=call.attempt,
        timeout_seconds=call.timeout_seconds,
        signer=Signer(tenant.signing_secret) if tenant.signing_secret else None,
        now=call.started_at,
        send_by=call.send_by,
    )


def resolve_orphaned(keys: Sequence[AttemptKey]) -> int:
    return lifecycle.resolve_orphaned(keys, list_node_ids)


def _build_memory_error(call: StartedCall) -> Errored:
    message = (
        f"The engine has too little memory for this request, which has about {call.request_bytes:,} bytes. Give the"
        " engine's process more memory, or make the request smaller."
    )
    return Errored(
        call.key.execution_id,
        ErrorKind.MEMORY,
        message,
        {"requestBytes": call.request_bytes},
        Timings(),
        may_have_been_sent=False,
    )

"""Create the history of calls in the past with the domain's own functions, at a simulated database time.

Each transaction contains complete lifecycles, from submission to outcome, so that a running engine never sees a timer that has
been due for days. Calls without an outcome are due in the future and can be sent.
"""

from __future__ import annotations

import heapq
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from itertools import count

from django.contrib.auth.models import User
from django.db import transaction

from eventservice.db.bulk import update_rows
from eventservice.db.now import pin_time
from eventservice.devtools.demo.companies import OUTAGE_HOST
from eventservice.devtools.demo.simulation import HOUR, World
from eventservice.devtools.demo.workload import Plan, build_id_at, is_safe_to_send
from eventservice.operators.audit_log import record_action
from execution.attempt_log import AttemptKey
from execution.outcome import Outcome, Responded
from orchestration.lifecycle import StartedCall, cancel, finish, replay, start, submit
from orchestration.models import ServiceCall
from orchestration.states import Status
from outbox.models import OutboxEvent
from timers.persistence import timer_persistence
from timers.port import Timer

Key = tuple[uuid.UUID, uuid.UUID]

OPERATORS = ("maria", "jonas")
# Attempts that finish within this window are recorded together.
RECORD_WINDOW_SECONDS = 0.25
# The share of calls failed in the outage that were replayed.
REPLAYED_SHARE = 0.7
# The share of canceled calls that an operator canceled.
CANCELED_BY_OPERATOR_SHARE = 0.3
# The event of a call that the broker rejected, and its error.
POISON_SEQ = 3
PARKED_AFTER = timedelta(seconds=1)
REFUSAL_TEXT = "rabbitmq: The broker refuses the exchange 'payouts': ACCESS_REFUSED for user 'event-service'."


@dataclass
class Backfill:
    world: World
    target: str
    nodes: Sequence[uuid.UUID]
    calls: int = 0
    _steps: list[tuple[datetime, int, Callable[[datetime], None]]] = field(default_factory=list)
    _order: Iterator[int] = field(default_factory=count)
    _plans: dict[Key, Plan] = field(default_factory=dict)
    _starting: dict[datetime, list[Key]] = field(default_factory=dict)

    @transaction.atomic
    def run(self, plans: Iterable[Plan]) -> None:
        """Create the history of these calls up to now, step by step in chronological order."""
        by_time = defaultdict(list)
        for plan in plans:
            by_time[plan.submitted_at].append(plan)
        for time, submitted in by_time.items():
            self._at(time, partial(self._submit, plans=submitted))
        while self._steps:
            time, _, step = heapq.heappop(self._steps)
            with pin_time(time):
                step(time)
        self._publish()
        self.calls += len(self._plans)
        self._plans.clear()

    def _at(self, time: datetime, step: Callable[[datetime], None]) -> None:
        heapq.heappush(self._steps, (time, next(self._order), step))

    # --- steps ------------------------------------------------------------------------------------------------

    def _submit(self, now: datetime, plans: Sequence[Plan]) -> None:
        submit([plan.command for plan in plans])
        for plan in plans:
            key = plan.command.tenant_id, plan.command.service_call_id
            self._plans[key] = plan
            if plan.cancel_at:
                self._at(plan.cancel_at, partial(self._cancel, key=key))
            else:
                self._schedule_start(key, plan.command.compute_due_at(now))

    def _schedule_start(self, key: Key, due_at: datetime) -> None:
        """Schedule the start if the call is due in the past. All calls due at the same time start in one pass."""
        if due_at > self.world.now:
            if not is_safe_to_send(self._plans[key], self.target):
                cancel(*key)
            return
        waiting = self._starting.setdefault(due_at, [])
        if not waiting:
            at = min(self.world.start_time(due_at), self.world.now)
            self._at(at, partial(self._start, due_at=due_at))
        waiting.append(key)

    def _start(self, now: datetime, due_at: datetime) -> None:
        timers = [self._timer(key, due_at) for key in self._starting.pop(due_at)]
        timer_persistence.mark_fired(timers, now, {0: 1})
        ends = [(call.key, self._outcome(call, now)) for call in start(timers, self._node(now))]
        ends.sort(key=lambda end: end[1].timings.total_ms)
        together: list[tuple[AttemptKey, Outcome]] = []
        for end in ends:
            if (
                together
                and _duration_seconds(end[1]) > _duration_seconds(together[0][1]) + RECORD_WINDOW_SECONDS
            ):
                self._finish_later(now, together)
                together = []
            together.append(end)
        self._finish_later(now, together)

    def _timer(self, key: Key, due_at: datetime) -> Timer:
        plan = self._plans[key]
        return Timer(*key, plan.command.correlation_id, due_at, shard_id=0, host=plan.host)

    def _outcome(self, call: StartedCall, now: datetime) -> Outcome:
        plan = self._plans[call.key.tenant_id, call.key.service_call_id]
        if plan.host == self._mock_host:
            return self.world.respond_unavailable()
        return self.world.outcome(plan.job, plan.host, plan.refused, now)

    @property
    def _mock_host(self) -> str:
        return self.target.split("/")[2]

    def _finish_later(self, now: datetime, ended: list[tuple[AttemptKey, Outcome]]) -> None:
        if ended:
            at = min(now + timedelta(seconds=_duration_seconds(ended[-1][1]) + 0.002), self.world.now)
            self._at(at, partial(self._finish, ended=ended))

    def _finish(self, now: datetime, ended: Sequence[tuple[AttemptKey, Outcome]]) -> None:
        finish(ended, fence=lambda: None)
        unfinished = [
            (key.tenant_id, key.service_call_id) for key, outcome in ended if not _is_success(outcome)
        ]
        for key, status, due_at in _list_states(unfinished):
            if status == Status.SCHEDULED:
                self._schedule_start(key, due_at)
            elif self._plans[key].host == OUTAGE_HOST and self.world.rng.random() < REPLAYED_SHARE:
                again_at = max(now + 0.1 * HOUR, self.world.outage[1] + 0.6 * HOUR)
                self._at(again_at, partial(self._replay, key=key))

    def _cancel(self, now: datetime, key: Key) -> None:
        cancel(*key)
        if self.world.rng.random() < CANCELED_BY_OPERATOR_SHARE:
            self._record_action("cancel", key)

    def _replay(self, now: datetime, key: Key) -> None:
        made = replay(*key, build_id_at(now, self.world.rng))
        again = key[0], made.service_call_id
        self._plans[again] = self._plans[key]
        self._record_action("replay", key)
        self._schedule_start(again, now)

    def _record_action(self, action: str, key: Key) -> None:
        who = User(username=self.world.rng.choice(OPERATORS))
        record_action(who, action, tenant_id=key[0], subject=key[1])

    def _node(self, now: datetime) -> uuid.UUID:
        """Return the node at this time: the engine was replaced after its outage."""
        return self.nodes[now >= self.world.engine_down[1]]

    # --- events -------------------------------------------------------------------------------------------

    def _publish(self) -> None:
        """Publish the events like the dispatcher, some milliseconds after they occurred."""
        published, parked = [], []
        for tenant_id, ids in _group_by_tenant(self._plans).items():
            events = OutboxEvent.objects.for_tenant(tenant_id).filter(aggregate_id__in=ids, published_at=None)
            for number, call, seq, at in events.values_list(
                "id", "aggregate_id", "aggregate_seq", "created_at"
            ):
                if self._plans[tenant_id, call].parked and seq >= POISON_SEQ:
                    parked.append((*_build_refusal(seq), at + PARKED_AFTER, number))
                else:
                    published.append((min(at + self._publishing_lag(), self.world.now), number))
        update_rows(OutboxEvent, "published_at = {published_at}", "id = {id}", published)
        update_rows(
            OutboxEvent,
            "attempts = {attempts}, last_error = {last_error}, parked_at = {parked_at}",
            "id = {id}",
            parked,
        )

    def _publishing_lag(self) -> timedelta:
        return timedelta(milliseconds=self.world.rng.lognormvariate(3.2, 0.5))


def _build_refusal(seq: int) -> tuple[int, str | None]:
    """Return the number of attempts and the error. The events behind the rejected one only wait."""
    return (5, REFUSAL_TEXT) if seq == POISON_SEQ else (0, None)


def _list_states(keys: Iterable[Key]) -> list[tuple[Key, str, datetime]]:
    """Return key, status and due time of these calls, in the order of their ids."""
    return [
        ((tenant_id, service_call_id), status, due_at)
        for tenant_id, ids in _group_by_tenant(keys).items()
        for service_call_id, status, due_at in ServiceCall.objects.for_tenant(tenant_id)
        .filter(service_call_id__in=ids)
        .order_by("service_call_id")
        .values_list("service_call_id", "status", "due_at")
    ]


def _group_by_tenant(keys: Iterable[Key]) -> dict[uuid.UUID, list[uuid.UUID]]:
    ids = defaultdict(list)
    for tenant_id, service_call_id in keys:
        ids[tenant_id].append(service_call_id)
    return ids


def _is_success(outcome: Outcome) -> bool:
    """Return whether the outcome is certainly a success. Other callback responses must be evaluated."""
    return isinstance(outcome, Responded) and outcome.status == 200 and b'"ok": false' not in outcome.body


def _duration_seconds(outcome: Outcome) -> float:
    return outcome.timings.total_ms / 1000

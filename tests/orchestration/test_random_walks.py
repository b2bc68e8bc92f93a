"""Random sequences of operations: histories have no gaps, no ended call has changed, and all rows agree."""

from __future__ import annotations

import random
import uuid
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from eventservice.db.now import pin_time
from eventservice.kernel.errors import Conflict
from execution.models import HttpExecution
from execution.outcome import ErrorKind, Outcome
from orchestration import lifecycle
from orchestration.lifecycle import StartedCall
from orchestration.models import ServiceCall
from orchestration.retries import RetryPolicy
from orchestration.states import LIVE, TERMINAL, TRANSITIONS, Delivery, Status
from outbox.models import OutboxEvent
from tests.factories import NOON
from tests.orchestration.support import ManualEngine, build_command, build_error, build_response
from timers.models import TimerSchedule

pytestmark = pytest.mark.django_db

STEPS = 120
STATUS_OF_EVENT = {
    "ServiceCallScheduled": "Scheduled",
    "ServiceCallRescheduled": "Scheduled",
    "ServiceCallRunning": "Running",
    "ServiceCallSucceeded": "Succeeded",
    "ServiceCallFailed": "Failed",
    "ServiceCallCanceled": "Canceled",
}


class Walk:
    def __init__(self, seed: int, manual_engine: ManualEngine, tenants: list[Any]) -> None:
        self.chance = random.Random(seed)
        self.manual_engine = manual_engine
        self.tenants = tenants
        self.now = NOON
        self.calls: list[tuple[uuid.UUID, uuid.UUID]] = []
        self.attempts: list[StartedCall] = []  # all that ever were: some are stale
        self.ended: dict[uuid.UUID, dict[str, Any]] = {}
        self.deleted: set[uuid.UUID] = set()

    def step(self) -> None:
        self.now += timedelta(seconds=self.chance.choice([0, 0.001, 1, 40]))
        steps = (
            self.submit,
            self.set_timer,
            self.start,
            self.start,
            self.finish,
            self.finish,
            self.interrupt,
            self.cancel,
            self.reschedule,
            self.delete,
        )
        with pin_time(self.now):
            self.chance.choice(steps)()

    def submit(self) -> None:
        commands = [
            build_command(
                self.chance.choice(self.tenants),
                due_at=self.now + timedelta(seconds=self.chance.choice([0, 0, 1, 60])),
                delivery=self.chance.choice(list(Delivery)),
                retry_policy=self.chance.choice([None, RetryPolicy(max_attempts=3, initial_interval=1)]),
                idempotency_key=self.chance.choice([None, None, *"abc"]),
            )
            for _ in range(self.chance.randint(1, 4))
        ]
        with suppress(Conflict):
            submitted = zip(commands, lifecycle.submit(commands), strict=True)
            self.calls += [(c.tenant_id, s.service_call_id) for c, s in submitted if not s.is_repeat]

    def set_timer(self) -> None:
        asked = build_command(
            self.chance.choice(self.tenants),
            external_id=self.chance.choice("xy"),
            due_at=self.now + timedelta(seconds=self.chance.choice([0, 1, 60])),
            retry_policy=RetryPolicy(max_attempts=3, initial_interval=1),
        )
        with suppress(Conflict):
            lifecycle.set_timer(asked)
            live = ServiceCall.objects.for_tenant(asked.tenant_id).get(live_external_id=asked.external_id)
            if (live.tenant_id, live.service_call_id) not in self.calls:
                self.calls.append((live.tenant_id, live.service_call_id))

    def start(self) -> None:
        self.attempts += self.manual_engine.start(self.chance.randint(1, 5))

    def finish(self) -> None:
        self.manual_engine.finish(
            *((attempt, self.choose_outcome(attempt)) for attempt in self.choose_attempts())
        )

    def choose_outcome(self, attempt: StartedCall) -> Outcome:
        if self.chance.random() < 0.5:
            return build_response(attempt, self.chance.choice([200, 204, 404, 503]))
        return build_error(attempt, self.chance.choice(list(ErrorKind)), sent=self.chance.random() < 0.5)

    def interrupt(self) -> None:
        lifecycle.resolve_interrupted([attempt.key for attempt in self.choose_attempts()])

    def choose_attempts(self) -> list[StartedCall]:
        recent = self.attempts[-8:]
        return self.chance.sample(recent, self.chance.randint(0, len(recent)))

    def cancel(self) -> None:
        if self.calls:
            with suppress(Conflict):
                lifecycle.cancel(*self.chance.choice(self.calls))

    def reschedule(self) -> None:
        if self.calls:
            with suppress(Conflict):
                due_at: datetime | None = self.chance.choice([None, self.now + timedelta(seconds=5)])
                lifecycle.reschedule(*self.chance.choice(self.calls), due_at)

    def delete(self) -> None:
        if self.calls:
            key = self.chance.choice(self.calls)
            with suppress(Conflict):
                lifecycle.delete(*key)
                self.calls.remove(key)
                self.deleted.add(key[1])

    # --- what must hold after every step ---

    def check(self) -> None:
        calls = {call.service_call_id: call for call in ServiceCall.across_tenants.all()}
        assert calls.keys() == {service_call_id for _, service_call_id in self.calls}
        timers = {t.service_call_id: t for t in TimerSchedule.across_tenants.all()}
        attempts = list(HttpExecution.across_tenants.all())
        for service_call_id, call in calls.items():
            self.check_timer(call, timers.get(service_call_id))
            self.check_log(call, [a for a in attempts if a.service_call_id == service_call_id])
            self.check_end(call)
        self.check_histories(calls)

    def check_timer(self, call: ServiceCall, timer: TimerSchedule | None) -> None:
        waits = timer is not None and timer.state == "Scheduled"
        assert waits == (call.status == Status.SCHEDULED)
        if waits:
            assert timer is not None
            assert timer.due_at == call.due_at

    def check_log(self, call: ServiceCall, attempts: list[HttpExecution]) -> None:
        assert sorted(a.attempt for a in attempts) == list(range(1, call.attempt + 1))
        still_open = [a.execution_id for a in attempts if a.finished_at is None]
        assert still_open == ([call.execution_id] if call.status == Status.RUNNING else [])
        assert (call.deadline_at is not None) == (call.status == Status.RUNNING)
        assert (call.finished_at is not None) == (call.status in TERMINAL)

    def check_end(self, call: ServiceCall) -> None:
        stored = {name: value for name, value in vars(call).items() if name != "_state"}
        if call.status in TERMINAL:
            assert self.ended.setdefault(call.service_call_id, stored) == stored
        else:
            assert call.service_call_id not in self.ended

    def check_histories(self, calls: dict[uuid.UUID, ServiceCall]) -> None:
        histories: dict[uuid.UUID, list[OutboxEvent]] = {key: [] for key in calls.keys() | self.deleted}
        for event in OutboxEvent.across_tenants.order_by("aggregate_seq"):
            histories[event.aggregate_id].append(event)
        for service_call_id, events in histories.items():
            assert [event.aggregate_seq for event in events] == list(range(1, len(events) + 1))
            told = [STATUS_OF_EVENT[e.event_type] for e in events if e.event_type in STATUS_OF_EVENT]
            if service_call_id in self.deleted:
                assert events[-1].event_type == "ServiceCallDeleted"
                assert events[-1].event_payload["lastStatus"] == told[-1]
            else:
                assert calls[service_call_id].next_seq == len(events) + 1
                assert told[-1] == calls[service_call_id].status
            for before, following in pairwise(told):
                assert before in LIVE
                assert before == following or following in TRANSITIONS[Status(before)]


@pytest.mark.parametrize("round_", range(3))
def test_every_invariant_holds_after_every_step(
    round_: int, manual_engine: ManualEngine, tenant: Any, intruder: Any
) -> None:
    seed = random.SystemRandom().randrange(10**9)
    print(f"seed {seed}")  # noqa: T201 (shown when it fails, so that the walk can be repeated)
    walk = Walk(seed, manual_engine, [tenant, intruder])
    for number in range(STEPS):
        walk.step()
        if number % 10 == 9:
            walk.check()
    assert walk.ended

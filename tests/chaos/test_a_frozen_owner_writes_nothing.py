"""P3: engines are frozen, another engine takes over their calls, and then they wake up with an outdated view of the world."""

from __future__ import annotations

import random
import time
from collections import Counter
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from django.db import connection

from eventservice.tenants.directory import create_tenant, declare_namespace
from execution.models import HttpExecution
from orchestration.models import ServiceCall
from outbox.models import OutboxEvent
from tests.process_harness import (
    ProcessHarness,
    Program,
    build_call,
    can_write,
    find_node,
    has_shards,
    report,
    submit_calls,
    wait_until,
    wait_until_all_ended,
)
from timers.models import Node, TimerSchedule

# The fault points outside transactions, and at which pass a process freezes there.
OUTSIDE = {"start.committed": 1, "start.sent": 1, "finish.before": 1, "finish.committed": 1, "beat": 10}
# Those inside. On SQLite a process that is frozen there holds the only write lock, and nothing ends its transaction.
INSIDE = {} if connection.vendor == "sqlite" else {"start.before_commit": 1, "finish.before_commit": 1}
AT_ANY_MOMENT = "at any moment"
SHORT_TIMEOUTS = {"NODE_LEASE_SECONDS": "1", "DB_IDLE_TRANSACTION_SECONDS": "2", "DB_LOCK_SECONDS": "1"}
CALLS_EACH = 12
# Enough for each engine to own some.
SHARDS = 64

WHOLE = pytest.param(100, 5, id="whole", marks=pytest.mark.chaos)


@pytest.mark.parametrize(("rounds", "at_once"), [pytest.param(2, 3, id="short"), WHOLE])
def test_the_late_results_of_a_fenced_owner_change_no_state(
    rounds: int, at_once: int, harness: ProcessHarness, rng: random.Random
) -> None:
    takeovers = Takeovers(harness, rng)
    for _ in range(rounds):
        takeovers.take_over(at_once)

    report(f"takeovers: {dict(takeovers.done)}; late results: {takeovers.late}")
    assert takeovers.done.total() == rounds * at_once
    assert takeovers.late, "no owner had a late result: the test shows nothing"


class Takeovers:
    def __init__(self, harness: ProcessHarness, rng: random.Random) -> None:
        self.harness = harness
        self.rng = rng
        self.tenant = create_tenant("acme").tenant_id
        declare_namespace(self.tenant, "wide", SHARDS)
        self.target = harness.start_target()
        self.successor = harness.start_engine(**SHORT_TIMEOUTS)
        self.points: list[str] = []
        self.done: Counter[str] = Counter()
        self.late = 0

    def take_over(self, at_once: int) -> None:
        victims = {self._start(point): point for point in [self._draw_point() for _ in range(at_once)]}
        owners = [wait_until(partial(find_node, victim), "the engine joins") for victim in victims]
        submitted = self._submit_until_frozen(victims)
        wait_until(lambda: not Node.objects.filter(pk__in=owners).exists(), "the frozen owners are reaped")
        wait_until_all_ended()
        before = self._read_state(submitted)

        for victim in victims:
            victim.thaw()
        for victim in victims:
            wait_until(lambda: "node_fenced" in victim.log, "the owner notices that it is fenced")  # noqa: B023
        # They exit once their last attempt has ended and is recorded.
        self.harness.stop(*victims)

        assert self._read_state(submitted) == before, f"frozen at {sorted(victims.values())}"
        self.done.update(victims.values())
        self._count_late_results(submitted, owners)

    def _draw_point(self) -> str:
        if not self.points:
            self.points = [*OUTSIDE, *INSIDE, AT_ANY_MOMENT]
            self.rng.shuffle(self.points)
        return self.points.pop()

    def _start(self, point: str) -> Program:
        nth = (OUTSIDE | INSIDE).get(point)
        return self.harness.start_engine(f"{point}=stop@{nth}" if nth else "", **SHORT_TIMEOUTS)

    def _submit_until_frozen(self, victims: dict[Program, str]) -> list[str]:
        submitted: list[str] = []
        running = dict(victims)
        wait_until(lambda: all(v.is_frozen or has_shards(v) for v in victims), "each engine owns shards")
        while running:
            submitted += submit_calls(self._build_call() for _ in range(CALLS_EACH * len(victims)))
            time.sleep(self.rng.uniform(0.01, 0.3))
            for victim, point in list(running.items()):
                assert victim.is_running, victim.log[-3000:]
                if victim.is_frozen or (point == AT_ANY_MOMENT and self._freeze(victim)):
                    del running[victim]
        return submitted

    def _freeze(self, victim: Program) -> bool:
        victim.freeze()
        if can_write():
            return True
        victim.thaw()
        return False

    def _build_call(self) -> Any:
        return build_call(self.tenant, f"{self.target.url}/delay/0.1", namespace="wide")

    def _count_late_results(self, submitted: list[str], owners: list[UUID]) -> None:
        """Count the attempts of frozen owners that were given up by others although the target had received them."""
        attempts = HttpExecution.objects.for_tenant(self.tenant).filter(
            node__in=owners, service_call_id__in=submitted
        )
        calls = ServiceCall.objects.for_tenant(self.tenant).filter(service_call_id__in=submitted)
        current = {execution for execution in calls.values_list("execution_id", flat=True) if execution}
        sent = {(request.call_id, request.attempt) for request in self.target.list_requests()}
        for attempt in attempts.exclude(execution_id__in=current):
            assert attempt.finished_at is not None
            if (str(attempt.service_call_id), attempt.attempt) in sent:
                self.late += attempt.response_status == 200

    def _read_state(self, submitted: list[str]) -> list[Any]:
        """Read everything that makes up the state of these calls. The execution log is not part of it."""
        calls = ServiceCall.objects.for_tenant(self.tenant).filter(service_call_id__in=submitted)
        timers = TimerSchedule.objects.for_tenant(self.tenant).filter(service_call_id__in=submitted)
        events = OutboxEvent.objects.for_tenant(self.tenant).filter(aggregate_id__in=submitted)
        return [
            list(rows.values())
            for rows in (calls.order_by("pk"), timers.order_by("pk"), events.order_by("id"))
        ]

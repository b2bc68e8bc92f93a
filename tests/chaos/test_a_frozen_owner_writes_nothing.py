"""P3. Engines are frozen, another takes over their calls, and then they wake up believing that all is as it was."""

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
    Program,
    Stage,
    accept,
    call,
    free_to_write,
    node_of,
    owns_shards,
    say,
    until,
    until_all_have_ended,
)
from timers.models import Node, TimerSchedule

# The pass of each point at which a process freezes there.
OUTSIDE = {"start.committed": 1, "start.sent": 1, "finish.before": 1, "finish.committed": 1, "beat": 10}
# On SQLite a process that is frozen there holds the one write lock, and nothing ends its transaction.
INSIDE = {} if connection.vendor == "sqlite" else {"start.before_commit": 1, "finish.before_commit": 1}
AT_ANY_MOMENT = "at any moment"
QUICK = {"NODE_LEASE_SECONDS": "1", "DB_IDLE_TRANSACTION_SECONDS": "2", "DB_LOCK_SECONDS": "1"}
CALLS_EACH = 12
# So many that each engine has some of them.
SHARDS = 64

WHOLE = pytest.param(100, 5, id="whole", marks=pytest.mark.chaos)


@pytest.mark.parametrize(("rounds", "at_once"), [pytest.param(2, 3, id="short"), WHOLE])
def test_what_a_fenced_owner_believes_changes_no_state(
    rounds: int, at_once: int, stage: Stage, chance: random.Random
) -> None:
    suite = Takeovers(stage, chance)
    for _ in range(rounds):
        suite.take_over(at_once)

    say(f"takeovers: {dict(suite.done)}; late results: {suite.late}")
    assert suite.done.total() == rounds * at_once
    assert suite.late, "no owner had a late result: this shows nothing"


class Takeovers:
    def __init__(self, stage: Stage, chance: random.Random) -> None:
        self.stage = stage
        self.chance = chance
        self.tenant = create_tenant("acme").tenant_id
        declare_namespace(self.tenant, "wide", SHARDS)
        self.witness = stage.witness()
        self.successor = stage.engine(**QUICK)
        self.points: list[str] = []
        self.done: Counter[str] = Counter()
        self.late = 0

    def take_over(self, at_once: int) -> None:
        victims = {self._begin(point): point for point in [self._next_point() for _ in range(at_once)]}
        owners = [until(partial(node_of, victim), "it joins") for victim in victims]
        begun = self._submit_until_frozen(victims)
        until(lambda: not Node.objects.filter(pk__in=owners).exists(), "the frozen owners are reaped")
        until_all_have_ended()
        before = self._state(begun)

        for victim in victims:
            victim.thaw()
        for victim, point in victims.items():
            until(lambda: "node_fenced" in victim.log, f"the owner frozen {point} sees it")  # noqa: B023
        # They leave once the last of what they had begun has ended, and is recorded.
        self.stage.stop(*victims)

        assert self._state(begun) == before, f"frozen at {sorted(victims.values())}"
        self.done.update(victims.values())
        self._find_late_results(begun, owners)

    def _next_point(self) -> str:
        if not self.points:
            self.points = [*OUTSIDE, *INSIDE, AT_ANY_MOMENT]
            self.chance.shuffle(self.points)
        return self.points.pop()

    def _begin(self, point: str) -> Program:
        nth = (OUTSIDE | INSIDE).get(point)
        return self.stage.engine(f"{point}=stop@{nth}" if nth else "", **QUICK)

    def _submit_until_frozen(self, victims: dict[Program, str]) -> list[str]:
        begun: list[str] = []
        thawed = dict(victims)
        until(lambda: all(v.frozen or owns_shards(v) for v in victims), "each has its share of the shards")
        while thawed:
            begun += accept(self._call() for _ in range(CALLS_EACH * len(victims)))
            time.sleep(self.chance.uniform(0.01, 0.3))
            for victim, point in list(thawed.items()):
                assert victim.running, victim.log[-3000:]
                if victim.frozen or (point == AT_ANY_MOMENT and self._freeze(victim)):
                    del thawed[victim]
        return begun

    def _freeze(self, victim: Program) -> bool:
        victim.freeze()
        if free_to_write():
            return True
        victim.thaw()
        return False

    def _call(self) -> Any:
        return call(self.tenant, f"{self.witness.url}/delay/0.1", namespace="wide")

    def _find_late_results(self, begun: list[str], owners: list[UUID]) -> None:
        """Attempts of the frozen that others had given up, and of which the target knows."""
        attempts = HttpExecution.objects.for_tenant(self.tenant).filter(
            node__in=owners, service_call_id__in=begun
        )
        calls = ServiceCall.objects.for_tenant(self.tenant).filter(service_call_id__in=begun)
        current = {execution for execution in calls.values_list("execution_id", flat=True) if execution}
        sent = {(one.call, one.attempt) for one in self.witness.sent()}
        for attempt in attempts.exclude(execution_id__in=current):
            assert attempt.finished_at is not None
            if (str(attempt.service_call_id), attempt.attempt) in sent:
                self.late += attempt.response_status == 200

    def _state(self, begun: list[str]) -> list[Any]:
        """All that the state of these calls consists of. The log is not part of it."""
        calls = ServiceCall.objects.for_tenant(self.tenant).filter(service_call_id__in=begun)
        timers = TimerSchedule.objects.for_tenant(self.tenant).filter(service_call_id__in=begun)
        events = OutboxEvent.objects.for_tenant(self.tenant).filter(aggregate_id__in=begun)
        return [
            list(rows.values())
            for rows in (calls.order_by("pk"), timers.order_by("pk"), events.order_by("id"))
        ]

"""A storm of kills over engines and a dispatcher that are started again and again, while calls keep coming."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from orchestration.commands import SubmitServiceCall
from orchestration.retries import RetryPolicy
from orchestration.states import Delivery, ResponseContract
from tests.process_harness import Program, Stage, Witness, accept, call

LEASE = {"NODE_LEASE_SECONDS": "2"}
# A kill at one of the first passes of the point: a process does not live long in a storm.
ENGINE_POINTS = {
    "start.before_commit": 8,
    "start.committed": 8,
    "start.sent": 8,
    "finish.before": 12,
    "finish.before_commit": 8,
    "finish.committed": 12,
    "beat": 6,
    "reap.committed": 1,
    "resolve.before_commit": 1,
}
DISPATCHER_POINTS = {"dispatch.read": 20, "dispatch.published": 10}
AT_RANDOM = "at random"
# A process whose fault point is not passed is killed all the same.
PATIENCE = 8.0

FLAKY = RetryPolicy(max_attempts=3, initial_interval=0.5, max_interval=1.0)


@dataclass
class Plan:
    """What shall end a process."""

    point: str
    faults: str
    at_most: float

    @classmethod
    def make(cls, point: str, points: dict[str, int], chance: random.Random) -> Plan:
        if point == AT_RANDOM:
            return cls(point, "", chance.uniform(1.0, 4.0))
        return cls(point, f"{point}=kill@{chance.randint(1, points[point])}", PATIENCE)


@dataclass
class Victim:
    """A place that is never empty for long: who dies in it is replaced."""

    begin: Callable[[str], Program]
    points: dict[str, int]
    chance: random.Random
    deck: list[str] = field(default_factory=list)
    plan: Plan | None = None
    program: Program | None = None
    since: float = 0.0

    def tend(self) -> str | None:
        """How it has died, if it has."""
        if self.program is None or self.plan is None:
            self._replace()
            return None
        if self.program.running:
            if time.monotonic() - self.since < self.plan.at_most:
                return None
            self.program.kill()
            died = AT_RANDOM
        else:
            assert self.program.exit_code == -9, self.program.log[-3000:]
            died = self.plan.point
        self._replace()
        return died

    def _replace(self) -> None:
        if not self.deck:
            self.deck = [*self.points, AT_RANDOM]
            self.chance.shuffle(self.deck)
        self.plan = Plan.make(self.deck.pop(), self.points, self.chance)
        self.program, self.since = self.begin(self.plan.faults), time.monotonic()


@dataclass
class Storm:
    stage: Stage
    chance: random.Random
    tenants: list[UUID]
    calls: int
    kills: int
    killed: Counter[str] = field(default_factory=Counter)
    accepted: dict[str, SubmitServiceCall] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.witness: Witness = self.stage.witness()
        engine = Victim(lambda faults: self.stage.engine(faults, **LEASE), ENGINE_POINTS, self.chance)
        other = Victim(lambda faults: self.stage.engine(faults, **LEASE), ENGINE_POINTS, self.chance)
        dispatcher = Victim(lambda faults: self.stage.dispatcher(faults), DISPATCHER_POINTS, self.chance)
        self.victims = [engine, other, dispatcher]

    def rage(self) -> None:
        while self.killed.total() < self.kills:
            self._submit_up_to(self.calls * (self.killed.total() + 1) // self.kills)
            for victim in self.victims:
                if died := victim.tend():
                    self.killed[died] += 1
            time.sleep(0.02)
        self._submit_up_to(self.calls)

    def calm(self) -> list[Program]:
        """No more faults: what is left of the storm's processes dies as well, and others do the rest."""
        for victim in self.victims:
            if victim.program:
                victim.program.kill()
        return [self.stage.engine(**LEASE), self.stage.dispatcher()]

    def _submit_up_to(self, number: int) -> None:
        missing = min(number, self.calls) - len(self.accepted)
        if missing > 0:
            commands = [self._any_call() for _ in range(min(missing, 20))]
            self.accepted |= dict(zip(accept(commands), commands, strict=True))

    def _any_call(self) -> SubmitServiceCall:
        tenant, due_in = self.chance.choice(self.tenants), self.chance.uniform(0.0, 3.0)
        url = self.witness.url
        match self.chance.choices(("ok", "slow", "once", "flaky", "callback", "bad"), (6, 3, 4, 2, 2, 1))[0]:
            case "once":
                return call(tenant, f"{url}/delay/0.1", due_in, delivery=Delivery.AT_MOST_ONCE)
            case "slow":
                return call(tenant, f"{url}/delay/0.3", due_in)
            case "flaky":
                return call(tenant, f"{url}/flaky/1", due_in, retry_policy=FLAKY)
            case "callback":
                return call(
                    tenant,
                    f"{url}/callback-retry",
                    due_in,
                    retry_policy=FLAKY,
                    response_contract=ResponseContract.CALLBACK,
                )
            case "bad":
                return call(tenant, f"{url}/status/400", due_in)
            case _:
                return call(tenant, f"{url}/ok", due_in)

"""A storm of kills over engines and a dispatcher that are restarted again and again, while calls keep coming."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from uuid import UUID

from orchestration.commands import SubmitServiceCall
from orchestration.retries import RetryPolicy
from orchestration.states import Delivery, ResponseContract
from tests.process_harness import ProcessHarness, Program, RecordingTarget, build_call, submit_calls

LEASE = {"NODE_LEASE_SECONDS": "2"}
# The kill comes at one of the first so many passes of the point: a process does not live long in a storm.
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
# The dispatchers' logs are where the test reads what was published.
PUBLISHED_AS_JSON = {"LOG_FORMAT": "json", "PUBLISHERS": "log"}
DISPATCHER_POINTS = {"dispatch.read": 20, "dispatch.published": 10}
AT_RANDOM = "at random"
# A process that has not reached its fault point by then is killed all the same.
MAX_LIFETIME_SECONDS = 8.0

FLAKY = RetryPolicy(max_attempts=3, initial_interval=0.5, max_interval=1.0)


@dataclass
class Plan:
    """The planned end of a process: at a fault point, or at a random moment."""

    point: str
    faults: str
    max_lifetime: float

    @classmethod
    def draw(cls, point: str, points: dict[str, int], rng: random.Random) -> Plan:
        if point == AT_RANDOM:
            return cls(point, "", rng.uniform(1.0, 4.0))
        return cls(point, f"{point}=kill@{rng.randint(1, points[point])}", MAX_LIFETIME_SECONDS)


@dataclass
class Victim:
    """A process that is killed again and again, and replaced each time."""

    start: Callable[[str], Program]
    points: dict[str, int]
    rng: random.Random
    deck: list[str] = field(default_factory=list)
    plan: Plan | None = None
    program: Program | None = None
    started_at: float = 0.0

    def kill_if_due(self) -> str | None:
        """Return how the process has died, if it has, after replacing it."""
        if self.program is None or self.plan is None:
            self._replace()
            return None
        if self.program.is_running:
            if time.monotonic() - self.started_at < self.plan.max_lifetime:
                return None
            self.program.kill()
            cause = AT_RANDOM
        else:
            assert self.program.exit_code == -9, self.program.log[-3000:]
            cause = self.plan.point
        self._replace()
        return cause

    def _replace(self) -> None:
        if not self.deck:
            self.deck = [*self.points, AT_RANDOM]
            self.rng.shuffle(self.deck)
        self.plan = Plan.draw(self.deck.pop(), self.points, self.rng)
        self.program, self.started_at = self.start(self.plan.faults), time.monotonic()


def draw_call(rng: random.Random, tenants: Sequence[UUID], url: str) -> SubmitServiceCall:
    """Return a call to the target, of one of the kinds whose outcomes `promises.assert_sent_as_promised` knows."""
    tenant, due_in = rng.choice(tenants), rng.uniform(0.0, 3.0)
    match rng.choices(("ok", "slow", "once", "flaky", "callback", "bad"), (6, 3, 4, 2, 2, 1))[0]:
        case "once":
            return build_call(tenant, f"{url}/delay/0.1", due_in, delivery=Delivery.AT_MOST_ONCE)
        case "slow":
            return build_call(tenant, f"{url}/delay/0.3", due_in)
        case "flaky":
            return build_call(tenant, f"{url}/flaky/1", due_in, retry_policy=FLAKY)
        case "callback":
            return build_call(
                tenant,
                f"{url}/callback-retry",
                due_in,
                retry_policy=FLAKY,
                response_contract=ResponseContract.CALLBACK,
            )
        case "bad":
            return build_call(tenant, f"{url}/status/400", due_in)
        case _:
            return build_call(tenant, f"{url}/ok", due_in)


@dataclass
class Storm:
    harness: ProcessHarness
    rng: random.Random
    tenants: list[UUID]
    calls: int
    kills: int
    killed: Counter[str] = field(default_factory=Counter)
    accepted: dict[str, SubmitServiceCall] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.target: RecordingTarget = self.harness.start_target()
        engine = Victim(lambda faults: self.harness.start_engine(faults, **LEASE), ENGINE_POINTS, self.rng)
        other = Victim(lambda faults: self.harness.start_engine(faults, **LEASE), ENGINE_POINTS, self.rng)
        dispatcher = Victim(
            lambda faults: self.harness.start_dispatcher(faults, **PUBLISHED_AS_JSON),
            DISPATCHER_POINTS,
            self.rng,
        )
        self.victims = [engine, other, dispatcher]

    def rage(self, points: Set[str] = frozenset()) -> None:
        """Submit all calls while the processes are killed, as often as the storm is to kill, and at each of these points.

        On a slow machine some processes end before they reach their points.
        """
        while self.killed.total() < self.kills or not points <= self.killed.keys():
            missed = points - self.killed.keys()
            assert self.killed.total() < 3 * self.kills, f"no process has been killed at {sorted(missed)}"
            self._submit_up_to(self.calls * (self.killed.total() + 1) // self.kills)
            for victim in self.victims:
                if cause := victim.kill_if_due():
                    self.killed[cause] += 1
            time.sleep(0.02)
        self._submit_up_to(self.calls)

    def calm(self) -> list[Program]:
        """Kill what is left of the storm's processes, and start an engine and a dispatcher without faults."""
        for victim in self.victims:
            if victim.program:
                victim.program.kill()
        return [self.harness.start_engine(**LEASE), self.harness.start_dispatcher(**PUBLISHED_AS_JSON)]

    def _submit_up_to(self, number: int) -> None:
        missing = min(number, self.calls) - len(self.accepted)
        if missing > 0:
            commands = [draw_call(self.rng, self.tenants, self.target.url) for _ in range(min(missing, 20))]
            self.accepted |= dict(zip(submit_calls(commands), commands, strict=True))

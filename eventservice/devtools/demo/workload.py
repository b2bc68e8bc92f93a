"""Which calls there were in the week, when they were submitted and for when, and which are still to come."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random
from typing import Any

import uuid6

from eventservice.devtools.demo.companies import JOBS, NAMESPACES, Job
from eventservice.devtools.demo.simulation import HOUR, World
from eventservice.tenants.models import DEFAULT_NAMESPACE
from orchestration.commands import RequestSpec, SubmitServiceCall
from orchestration.retries import RetryPolicy
from orchestration.states import FAVORITE, ResponseContract

NEWEST = timedelta(seconds=2)
# When the next call is due: by then all are written.
SOON = timedelta(seconds=12)
FAVORITES = 0.004
STUBBORN = RetryPolicy(max_attempts=12, initial_interval=240.0, backoff_multiplier=1.5, max_interval=900.0)


@dataclass(slots=True)
class Plan:
    """One call: what is submitted when, and what is to become of it as far as that does not depend on the world."""

    job: Job
    command: SubmitServiceCall
    host: str
    submitted_at: datetime
    refused: bool = False
    cancel_at: datetime | None = None
    parked: bool = False  # its events


class Planner:
    """`target`: the mock target, to which all goes that is still to be sent."""

    def __init__(self, tenants: Mapping[str, uuid.UUID], world: World, target: str) -> None:
        self.tenants, self.world, self.target = tenants, world, target
        self.rng = world.rng

    def plans(self, calls: int) -> list[Plan]:
        """In the order of their submission."""
        whole = sum(job.share for job in JOBS)
        made = [plan for job in JOBS for plan in self._of_job(job, calls * job.share / whole)]
        made += [*self._in_the_outage(), *self._in_trouble_now(), *self._to_come(calls), *self._canceled()]
        return sorted(made, key=lambda plan: plan.submitted_at)

    # --- the past ---------------------------------------------------------------------------------------------

    def _of_job(self, job: Job, calls: float) -> Iterator[Plan]:
        bursts = _whole(self.rng, calls / (sum(job.burst) / 2))
        for _ in range(bursts):
            moment = self._moment(job)
            if moment <= self.world.now - NEWEST:
                yield from self._burst(job, moment, self.rng.randint(*job.burst))

    def _moment(self, job: Job) -> datetime:
        if not job.hours:
            return self.world.some_moment()
        hour = self.rng.choice(self.world.moments_at(self.rng.choice(job.hours)))
        return hour + timedelta(seconds=self.rng.expovariate(1 / 90))

    def _burst(self, job: Job, at: datetime, size: int) -> Iterator[Plan]:
        """Submitted in one request, for one moment."""
        wait = timedelta(seconds=round(self.rng.uniform(*job.wait)))
        correlation_id = id_at(at, self.rng)
        for _ in range(size):
            yield self.plan(job, at, wait, correlation_id)

    def plan(
        self, job: Job, at: datetime, wait: timedelta, correlation_id: uuid.UUID, url: str | None = None,
        policy: RetryPolicy | None = None,
    ) -> Plan:  # fmt: skip
        due_at = at + wait
        still_to_come = due_at > self.world.now
        url = url or (f"{self.target}/ok" if still_to_come else job.url)
        command = self._command(job, at, due_at, correlation_id, url, policy or job.policy)
        plan = Plan(job, command, url.split("/")[2], at, refused=self.rng.random() < job.refused)
        if wait and not still_to_come and self.rng.random() < job.canceled:
            plan.cancel_at = at + wait * self.rng.uniform(0.1, 0.9)
        return plan

    def _command(
        self, job: Job, at: datetime, due_at: datetime, correlation_id: uuid.UUID, url: str,
        policy: RetryPolicy | None,
    ) -> SubmitServiceCall:  # fmt: skip
        body = job.body(self.rng)
        durable: dict[str, Any] = {}
        if job.timer:
            namespace, timer_id = NAMESPACES[job.tenant][0], f"{job.timer}{self.rng.randrange(10**7):07}"
            body = {
                "namespace": namespace,
                "timerId": timer_id,
                "payload": body,
                "executeAt": _instant(due_at),
            }
            durable = {
                "namespace": namespace,
                "external_id": timer_id,
                "response_contract": ResponseContract.CALLBACK,
            }
        tags = job.tags | ({FAVORITE} if self.rng.random() < FAVORITES else set())
        return SubmitServiceCall(
            self.tenants[job.tenant],
            durable.get("external_id", job.name),
            RequestSpec(job.method, url, job.headers, body),
            due_at=due_at,
            service_call_id=id_at(at, self.rng),
            tags=tags,
            correlation_id=correlation_id,
            retry_policy=policy,
            timeout_seconds=job.timeout,
            **{"namespace": DEFAULT_NAMESPACE, **durable},
        )

    def _in_the_outage(self) -> Iterator[Plan]:
        """It meets some, however few there are in all."""
        job = _job("Order webhook")
        began, ended = self.world.outage
        for minutes in range(3, int((ended - began) / timedelta(minutes=1)), 12):
            yield from self._burst(job, began + timedelta(minutes=minutes), 3)

    def _canceled(self) -> Iterator[Plan]:
        """Some are, however few there are in all."""
        job = max(JOBS, key=lambda job: job.canceled)
        for hours in (5, 41, 110):
            at = self.world.now - hours * HOUR
            plan = self.plan(job, at, HOUR, id_at(at, self.rng))
            plan.cancel_at = at + HOUR / 2
            yield plan

    # --- now, and what is to come -----------------------------------------------------------------------------

    def _in_trouble_now(self) -> Iterator[Plan]:
        yield from self._failing()
        webhook = _job("Merchant webhook")
        # These have met a 503 for a while and are due again soon: the mock target answers them at last.
        for _ in range(14):
            yield self._ago(webhook, self.rng.uniform(1, 50), f"{self.target}/flaky/2", STUBBORN)
        # Events that nobody would take.
        for minutes in (24, 186, 312):
            plan = self._ago(webhook, minutes)
            plan.parked = True
            yield plan

    def _failing(self) -> Iterator[Plan]:
        """One call of the dead host every few minutes, and so for some hours to come."""
        job = _job("Look up price")
        for minutes in range(2, 60, 4):
            yield self._ago(job, minutes + self.rng.random())
        for minutes in range(1, 240, 4):
            yield self._coming(job, timedelta(minutes=minutes + self.rng.random()), job.url)

    def _ago(
        self, job: Job, minutes: float, url: str | None = None, policy: RetryPolicy | None = None
    ) -> Plan:
        at = self.world.now - timedelta(minutes=minutes)
        return self.plan(job, at, timedelta(), id_at(at, self.rng), url, policy)

    def _to_come(self, calls: int) -> Iterator[Plan]:
        """Densely for some hours, so that what is shown goes on; and what is planned for the next days."""
        frequent = [job for job in JOBS if not job.hours and not job.timer]
        for _ in range(max(20, calls // 20)):
            job = self.rng.choice(frequent)
            yield self._coming(job, SOON + HOUR * self.rng.expovariate(0.5), self.target + self._path(job))
        for seconds in range(15, 600, 30):
            yield self._coming(
                _job("Settlement report"), timedelta(seconds=seconds), f"{self.target}/delay/40"
            )
        for job in JOBS:
            for hour in job.hours:
                away = HOUR * ((hour - self.world.local_hour(self.world.now)) % 24 or 24)
                for _ in range(max(2, round(job.share * calls / 60))):
                    yield self._coming(job, away)
            if job.timer:
                for _ in range(max(3, calls // 250)):
                    yield self._coming(job, HOUR * self.rng.uniform(0.2, 72))

    def _path(self, job: Job) -> str:
        if job.latency_ms > 1000:
            return "/delay/2"
        kinds = ("/ok", "/delay/0.05", "/delay/0.3", "/flaky/1" if job.policy else "/ok", "/status/422")
        return self.rng.choices(kinds, (60, 20, 10, 7, 3))[0]

    def _coming(self, job: Job, away: timedelta, url: str | None = None) -> Plan:
        since = timedelta(minutes=self.rng.uniform(0.1, 600))
        at = self.world.now - since
        return self.plan(job, at, since + away, id_at(at, self.rng), url)


def _job(name: str) -> Job:
    return next(job for job in JOBS if job.name == name)


def id_at(moment: datetime, rng: Random) -> uuid.UUID:
    """An id as it would have been made then (eventservice.kernel.ids)."""
    milliseconds = int(moment.timestamp() * 1000)
    return uuid6.UUID(int=milliseconds << 80 | rng.getrandbits(74), version=7)


def may_be_sent(plan: Plan, target: str) -> bool:
    """Whether it does no harm when the engine makes it: it reaches the mock target, or nobody at all."""
    return plan.command.request.url.startswith(f"{target}/") or plan.host.endswith(".invalid")


def _whole(rng: Random, number: float) -> int:
    """As a whole number that is right on average."""
    return int(number) + (rng.random() < number % 1)


def _instant(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")

"""The calls of the sample week: when they were submitted, when they were due, and which are still pending."""

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

MIN_AGE = timedelta(seconds=2)
# The next call is due after this delay, when all history is written.
FIRST_DELAY = timedelta(seconds=12)
FAVORITE_SHARE = 0.004
LONG_POLICY = RetryPolicy(max_attempts=12, initial_interval=240.0, backoff_multiplier=1.5, max_interval=900.0)


@dataclass(slots=True)
class Plan:
    """A call with its submission time, and the parts of its history that do not depend on the simulation."""

    job: Job
    command: SubmitServiceCall
    host: str
    submitted_at: datetime
    refused: bool = False
    cancel_at: datetime | None = None
    parked: bool = False  # its events are rejected by the publisher


class Planner:
    """Plans the calls of the week. Pending calls go to `target`, the mock target."""

    def __init__(self, tenants: Mapping[str, uuid.UUID], world: World, target: str) -> None:
        self.tenants, self.world, self.target = tenants, world, target
        self.rng = world.rng

    def plans(self, calls: int) -> list[Plan]:
        """Return the plans in the order of submission."""
        total = sum(job.share for job in JOBS)
        plans = [plan for job in JOBS for plan in self._plan_job(job, calls * job.share / total)]
        plans += [
            *self._plan_outage(),
            *self._plan_current_failures(),
            *self._plan_pending(calls),
            *self._plan_canceled(),
        ]
        return sorted(plans, key=lambda plan: plan.submitted_at)

    # --- the past ---------------------------------------------------------------------------------------------

    def _plan_job(self, job: Job, calls: float) -> Iterator[Plan]:
        bursts = _round_randomly(self.rng, calls / (sum(job.burst) / 2))
        for _ in range(bursts):
            moment = self._random_time(job)
            if moment <= self.world.now - MIN_AGE:
                yield from self._plan_burst(job, moment, self.rng.randint(*job.burst))

    def _random_time(self, job: Job) -> datetime:
        if not job.hours:
            return self.world.random_time()
        hour = self.rng.choice(self.world.times_at_hour(self.rng.choice(job.hours)))
        return hour + timedelta(seconds=self.rng.expovariate(1 / 90))

    def _plan_burst(self, job: Job, at: datetime, size: int) -> Iterator[Plan]:
        """Plan calls that are submitted in one request and due at the same time."""
        wait = timedelta(seconds=round(self.rng.uniform(*job.wait)))
        correlation_id = build_id_at(at, self.rng)
        for _ in range(size):
            yield self.plan(job, at, wait, correlation_id)

    def plan(
        self, job: Job, at: datetime, wait: timedelta, correlation_id: uuid.UUID, url: str | None = None,
        policy: RetryPolicy | None = None,
    ) -> Plan:  # fmt: skip
        due_at = at + wait
        is_pending = due_at > self.world.now
        url = url or (f"{self.target}/ok" if is_pending else job.url)
        command = self._command(job, at, due_at, correlation_id, url, policy or job.policy)
        plan = Plan(job, command, url.split("/")[2], at, refused=self.rng.random() < job.refused)
        if wait and not is_pending and self.rng.random() < job.canceled:
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
                "executeAt": _format_timestamp(due_at),
            }
            durable = {
                "namespace": namespace,
                "external_id": timer_id,
                "response_contract": ResponseContract.CALLBACK,
            }
        tags = job.tags | ({FAVORITE} if self.rng.random() < FAVORITE_SHARE else set())
        return SubmitServiceCall(
            self.tenants[job.tenant],
            durable.get("external_id", job.name),
            RequestSpec(job.method, url, job.headers, body),
            due_at=due_at,
            service_call_id=build_id_at(at, self.rng),
            tags=tags,
            correlation_id=correlation_id,
            retry_policy=policy,
            timeout_seconds=job.timeout,
            **{"namespace": DEFAULT_NAMESPACE, **durable},
        )

    def _plan_outage(self) -> Iterator[Plan]:
        """Plan calls in the outage, so that there are some in every sample size."""
        job = _get_job("Order webhook")
        began, ended = self.world.outage
        for minutes in range(3, int((ended - began) / timedelta(minutes=1)), 12):
            yield from self._plan_burst(job, began + timedelta(minutes=minutes), 3)

    def _plan_canceled(self) -> Iterator[Plan]:
        """Plan canceled calls, so that there are some in every sample size."""
        job = max(JOBS, key=lambda job: job.canceled)
        for hours in (5, 41, 110):
            at = self.world.now - hours * HOUR
            plan = self.plan(job, at, HOUR, build_id_at(at, self.rng))
            plan.cancel_at = at + HOUR / 2
            yield plan

    # --- current failures and pending calls -----------------------------------------------------------------------------

    def _plan_current_failures(self) -> Iterator[Plan]:
        yield from self._plan_dead_host()
        webhook = _get_job("Merchant webhook")
        # These failed with 503 for a while and are due again soon, when the mock target lets them succeed.
        for _ in range(14):
            yield self._plan_past(webhook, self.rng.uniform(1, 50), f"{self.target}/flaky/2", LONG_POLICY)
        # Calls whose events were rejected.
        for minutes in (24, 186, 312):
            plan = self._plan_past(webhook, minutes)
            plan.parked = True
            yield plan

    def _plan_dead_host(self) -> Iterator[Plan]:
        """Plan calls to the dead host every few minutes, and for the next hours."""
        job = _get_job("Look up price")
        for minutes in range(2, 60, 4):
            yield self._plan_past(job, minutes + self.rng.random())
        for minutes in range(1, 240, 4):
            yield self._plan_future(job, timedelta(minutes=minutes + self.rng.random()), job.url)

    def _plan_past(
        self, job: Job, minutes: float, url: str | None = None, policy: RetryPolicy | None = None
    ) -> Plan:
        at = self.world.now - timedelta(minutes=minutes)
        return self.plan(job, at, timedelta(), build_id_at(at, self.rng), url, policy)

    def _plan_pending(self, calls: int) -> Iterator[Plan]:
        """Plan frequent calls for the next hours, so that the dashboard stays active, and scheduled ones for the next days."""
        frequent = [job for job in JOBS if not job.hours and not job.timer]
        for _ in range(max(20, calls // 20)):
            job = self.rng.choice(frequent)
            yield self._plan_future(
                job, FIRST_DELAY + HOUR * self.rng.expovariate(0.5), self.target + self._path(job)
            )
        for seconds in range(15, 600, 30):
            yield self._plan_future(
                _get_job("Settlement report"), timedelta(seconds=seconds), f"{self.target}/delay/40"
            )
        for job in JOBS:
            for hour in job.hours:
                away = HOUR * ((hour - self.world.local_hour(self.world.now)) % 24 or 24)
                for _ in range(max(2, round(job.share * calls / 60))):
                    yield self._plan_future(job, away)
            if job.timer:
                for _ in range(max(3, calls // 250)):
                    yield self._plan_future(job, HOUR * self.rng.uniform(0.2, 72))

    def _path(self, job: Job) -> str:
        if job.latency_ms > 1000:
            return "/delay/2"
        kinds = ("/ok", "/delay/0.05", "/delay/0.3", "/flaky/1" if job.policy else "/ok", "/status/422")
        return self.rng.choices(kinds, (60, 20, 10, 7, 3))[0]

    def _plan_future(self, job: Job, away: timedelta, url: str | None = None) -> Plan:
        since = timedelta(minutes=self.rng.uniform(0.1, 600))
        at = self.world.now - since
        return self.plan(job, at, since + away, build_id_at(at, self.rng), url)


def _get_job(name: str) -> Job:
    return next(job for job in JOBS if job.name == name)


def build_id_at(time: datetime, rng: Random) -> uuid.UUID:
    """Build an id like those created at that time (eventservice.kernel.ids)."""
    milliseconds = int(time.timestamp() * 1000)
    return uuid6.UUID(int=milliseconds << 80 | rng.getrandbits(74), version=7)


def is_safe_to_send(plan: Plan, target: str) -> bool:
    """Return whether the engine can send the call: it reaches the mock target, or no host at all."""
    return plan.command.request.url.startswith(f"{target}/") or plan.host.endswith(".invalid")


def _round_randomly(rng: Random, number: float) -> int:
    """Round up or down at random, so that the average is exact."""
    return int(number) + (rng.random() < number % 1)


def _format_timestamp(time: datetime) -> str:
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")

"""Simulation of the sample week: which hosts responded when and how fast, and how late the engine was."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random
from typing import Any

from eventservice.devtools.demo.companies import DEAD_HOST, OUTAGE_HOST, Job
from execution.outcome import Errored, ErrorKind, Outcome, Responded, Timings

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
WEEK = timedelta(days=7)

# The companies are always in the middle of their working day, so that the dashboard shows activity.
LOCAL_HOUR_NOW = 15
# The relative load of each hour of their day.
HOURLY_LOAD = (2, 1, 1, 1, 1, 2, 4, 7, 10, 13, 15, 15, 13, 13, 14, 15, 14, 12, 10, 9, 8, 7, 5, 3)
WEEKEND_LOAD = 0.55
# The additional share of calls in the last ninety minutes, because the dashboard opens with the last hour.
RECENT_SHARE = 0.03


@dataclass
class World:
    now: datetime
    rng: Random
    outage: tuple[datetime, datetime] = field(init=False)
    died_at: datetime = field(init=False)
    engine_down: tuple[datetime, datetime] = field(init=False)

    def __post_init__(self) -> None:
        # All in working hours: the outage in the middle of the week, the dead host since this morning, and the engine two days ago.
        days = min((3, 2, 4, 5), key=lambda days: self._is_weekend(self.now - days * DAY))
        self.outage = self.now - days * DAY - 4.5 * HOUR, self.now - days * DAY - 2 * HOUR
        self.died_at = self.now - 6.5 * HOUR
        self.engine_down = self.now - 2 * DAY - 4 * HOUR, self.now - 2 * DAY - 3.95 * HOUR

    # --- times -------------------------------------------------------------------------------------------------

    def local_hour(self, moment: datetime) -> float:
        return (LOCAL_HOUR_NOW + (moment - self.now) / HOUR) % 24

    @staticmethod
    def _is_weekend(moment: datetime) -> bool:
        return moment.weekday() >= 5

    def load_at(self, moment: datetime) -> float:
        """Return the load at this time, from 0 to 1."""
        factor = WEEKEND_LOAD if self._is_weekend(moment) else 1.0
        return factor * HOURLY_LOAD[int(self.local_hour(moment))] / max(HOURLY_LOAD)

    def random_time(self) -> datetime:
        """Return a random time of the past week, distributed like the load."""
        if self.rng.random() < RECENT_SHARE:
            return self.now - 1.5 * HOUR * self.rng.random()
        while True:
            moment = self.now - WEEK * self.rng.random()
            if self.rng.random() < self.load_at(moment):
                return moment

    def times_at_hour(self, hour: int) -> list[datetime]:
        """Return the times of the past week at which it was this hour."""
        latest = self.now - HOUR * ((LOCAL_HOUR_NOW - hour) % 24 or 24)
        return [latest - timedelta(days=days) for days in range(7)]

    def start_time(self, due_at: datetime) -> datetime:
        """Return the time at which the engine started calls that were due then."""
        down, up = self.engine_down
        if down <= due_at < up:
            return up + timedelta(milliseconds=self.rng.uniform(5, 900))
        milliseconds = self.rng.lognormvariate(math.log(7), 0.6)
        if self.rng.random() < 0.02:
            milliseconds += self.rng.uniform(60, 700)
        return due_at + timedelta(milliseconds=milliseconds)

    # --- outcomes -------------------------------------------------------------------------------------------------

    def outcome(self, job: Job, host: str, refused: bool, at: datetime) -> Outcome:
        if host == DEAD_HOST and at >= self.died_at:
            return self._fail_dead_host(job, at)
        if host == OUTAGE_HOST and self.outage[0] <= at < self.outage[1] and self.rng.random() < 0.97:
            return self.respond_unavailable(self.rng.uniform(700, 2600), "upstream connect error")
        latency = job.latency_ms * self.rng.lognormvariate(0, job.spread) * (0.8 + 0.5 * self.load_at(at))
        if latency >= job.timeout * 1000 or self.rng.random() < job.flaky / 4:
            return _build_timeout(job, host)
        if refused:
            return _build_response(*job.refusal, latency)
        if self.rng.random() < job.flaky:
            return self.respond_unavailable(latency)
        return _build_response(200, self._build_response_body(job, at), latency)

    def _build_response_body(self, job: Job, at: datetime) -> Any:
        if job.timer and at < self.now - 3 * HOUR and self.rng.random() < 0.06:
            again = (at + timedelta(minutes=20)).isoformat(timespec="seconds")
            return {"ok": False, "nextExecuteAt": again}
        return job.answer(self.rng)

    def respond_unavailable(self, latency: float = 12.0, reason: str = "temporarily overloaded") -> Outcome:
        return _build_response(503, {"error": reason}, latency)

    def _fail_dead_host(self, job: Job, at: datetime) -> Outcome:
        """The dead host first refuses connections, then does not respond, and finally has no DNS name."""
        progress = (at - self.died_at) / (self.now - self.died_at)
        if progress < 0.1:
            message = f"Could not connect to {DEAD_HOST}: Connection refused."
            return _build_error(ErrorKind.CONNECT, message, "connecting", self.rng.uniform(2, 9))
        if progress < 0.35:
            return _build_timeout(job, DEAD_HOST, "connecting")
        message = f"The host name {DEAD_HOST} could not be resolved: Name or service not known."
        return _build_error(ErrorKind.DNS, message, "before connecting", self.rng.uniform(12, 90))


def _build_timeout(job: Job, host: str, phase: str = "waiting for the response") -> Outcome:
    message = (
        f"{host} did not send a complete response within {job.timeout:g} s. The attempt timed out {phase}."
    )
    return _build_error(ErrorKind.TIMEOUT, message, phase, job.timeout * 1000)


def _build_error(kind: ErrorKind, message: str, phase: str, latency: float) -> Outcome:
    return Errored(
        None, kind, message, {"phase": phase}, Timings(total_ms=latency), phase.startswith("waiting")
    )


def _build_response(status: int, answer: Any, latency: float) -> Outcome:
    body = json.dumps(answer).encode()
    headers = (("content-type", "application/json"), ("server", "envoy"), ("content-length", str(len(body))))
    shares = {"dns_ms": 0.03, "connect_ms": 0.09, "tls_ms": 0.2, "first_byte_ms": 0.98, "total_ms": 1}
    times = Timings(**{phase: latency * share for phase, share in shares.items()})
    return Responded(None, status, headers, body, len(body), times)

"""Calls moved by hand, step by step, as the engine would move them; and what the tables then hold."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import OperationalError, connection, transaction

from execution.models import HttpExecution
from execution.outcome import Attempt, Errored, ErrorKind, Outcome, Responded, Timings
from orchestration import lifecycle
from orchestration.commands import RequestSpec, SubmitServiceCall
from orchestration.engine.capacity import EngineLimits
from orchestration.engine.engine import Engine, PassResult
from orchestration.lifecycle import StartedCall
from orchestration.models import ServiceCall
from outbox.models import OutboxEvent
from timers.membership import Membership
from timers.models import TimerSchedule
from timers.poller import Poller

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
URL = "http://target.test/hook"
UNQUOTED = str.maketrans("", "", '"`')
NO_HEADERS: Mapping[str, str] = {}


def command(tenant: Any, **given: Any) -> SubmitServiceCall:
    values = {"name": "call", "request": RequestSpec("POST", URL)}
    return SubmitServiceCall(tenant_id=tenant.tenant_id, **{**values, **given})


def submit(tenant: Any, **given: Any) -> uuid.UUID:
    return lifecycle.submit([command(tenant, **given)])[0].service_call_id


class Hand:
    """A node that owns every shard and does one step at a time."""

    def __init__(self, num_shards: int = 16) -> None:
        self.membership = Membership()
        self.membership.join()
        self.membership.rebalance(num_shards)
        self.poller = Poller(self.membership.leases)

    def start(self, limit: int = 1000) -> list[StartedCall]:
        with transaction.atomic():
            return lifecycle.start(self.poller.claim_due(limit), self.membership.owner_id)

    def start_one(self) -> StartedCall:
        (started,) = self.start()
        return started

    def finish(self, *ended: tuple[StartedCall, Outcome]) -> int:
        return lifecycle.finish([(call.key, outcome) for call, outcome in ended], self.membership.fence)


# --- outcomes ---


def responded(
    call: Any = None,
    status: int = 200,
    body: bytes = b'{"ok": true}',
    headers: Mapping[str, str] = NO_HEADERS,
) -> Responded:
    return Responded(_key(call), status, tuple(headers.items()), body, len(body), Timings(total_ms=12.34))


def errored(call: Any = None, kind: ErrorKind = ErrorKind.CONNECT, *, sent: bool = False) -> Errored:
    return Errored(_key(call), kind, "It did not work.", {"phase": "x"}, Timings(total_ms=5.0), sent)


def _key(call: Any) -> Any:
    return call.key.execution_id if isinstance(call, StartedCall) else call


# --- what the tables hold ---


def call_of(tenant: Any, service_call_id: uuid.UUID) -> Any:
    return ServiceCall.objects.for_tenant(tenant.tenant_id).get(service_call_id=service_call_id)


def status_of(tenant: Any, service_call_id: uuid.UUID) -> str:
    return str(call_of(tenant, service_call_id).status)


def timer_of(tenant: Any, service_call_id: uuid.UUID) -> TimerSchedule | None:
    timers = TimerSchedule.objects.for_tenant(tenant.tenant_id)
    return timers.filter(service_call_id=service_call_id).first()


def log_of(tenant: Any, service_call_id: uuid.UUID) -> list[Any]:
    rows = HttpExecution.objects.for_tenant(tenant.tenant_id).filter(service_call_id=service_call_id)
    return list(rows.order_by("attempt"))


def events_of(tenant: Any, service_call_id: uuid.UUID) -> list[OutboxEvent]:
    """In their order, which has no gap."""
    rows = OutboxEvent.objects.for_tenant(tenant.tenant_id).filter(aggregate_id=service_call_id)
    events = list(rows.order_by("aggregate_seq"))
    assert [event.aggregate_seq for event in events] == list(range(1, len(events) + 1))
    return events


def event_types(tenant: Any, service_call_id: uuid.UUID) -> list[str]:
    return [event.event_type for event in events_of(tenant, service_call_id)]


def everything() -> list[list[dict[str, Any]]]:
    """Every call, timer and event as it stands."""
    models: list[Any] = [ServiceCall, TimerSchedule, OutboxEvent]
    return [sorted(model.across_tenants.values(), key=str) for model in models]


# --- the engine ---


class FakeEgress:
    """Remembers what it was to send, and hands over what the test lets arrive."""

    def __init__(self) -> None:
        self.sent: list[Attempt] = []
        self.naps: list[float] = []
        self.arrived: list[Outcome] = []
        self.closed = False

    def send(self, attempts: list[Attempt]) -> None:
        self.sent += attempts

    def collect(self, timeout: float) -> list[Outcome]:
        self.naps.append(timeout)
        outcomes, self.arrived = self.arrived, []
        return outcomes

    def wake(self) -> None: ...

    def close(self) -> None:
        self.closed = True

    def answer(self, *numbers: int, status: int = 200) -> None:
        """Answers to what was sent as number so-and-so, or to all."""
        keys = [attempt.key for attempt in self.sent]
        self.arrived += [responded(keys[number], status) for number in numbers or range(len(keys))]


def engine_on(egress: Any, **limits: int) -> Engine:
    return Engine(egress, EngineLimits(**limits))


def look(engine: Engine) -> PassResult:
    """One pass that looks for due timers. Of itself it looks when another connection has written."""
    engine._look_at = 0.0
    return engine.poll_once(0.0)


@contextmanager
def database_away(statement: str) -> Iterator[None]:
    """Every statement that begins so fails, as it would when the connection is lost."""

    def refuse(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.translate(UNQUOTED).startswith(statement):
            raise OperationalError("the database is away")
        return execute(sql, params, many, context)

    with connection.execute_wrapper(refuse):
        yield


def after(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)

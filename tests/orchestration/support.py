"""Moves calls step by step, as the engine does; reads what the tables then hold; and builds engines for tests."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

from django.db import OperationalError, connection, transaction

from eventservice.db.dialects.change_watch import ChangeWatch
from eventservice.tenants.directory import list_tenant_ids
from execution.models import HttpExecution
from execution.outcome import Attempt, Errored, ErrorKind, Outcome, Responded, Timings
from orchestration import lifecycle
from orchestration.commands import RequestSpec, SubmitServiceCall
from orchestration.engine.capacity import EngineLimits
from orchestration.engine.engine import MAX_NAP_SECONDS, Engine, PassResult
from orchestration.lifecycle import StartedCall
from orchestration.models import ServiceCall
from outbox.models import OutboxEvent
from tests.factories import NOON
from timers.membership import Membership, ensure_shards
from timers.models import TimerSchedule
from timers.poller import Poller

URL = "http://target.test/hook"
UNQUOTED = str.maketrans("", "", '"`')
NO_HEADERS: Mapping[str, str] = {}


def build_command(tenant: Any, **given: Any) -> SubmitServiceCall:
    values = {"name": "call", "request": RequestSpec("POST", URL)}
    return SubmitServiceCall(tenant_id=tenant.tenant_id, **{**values, **given})


def submit(tenant: Any, **given: Any) -> uuid.UUID:
    return lifecycle.submit([build_command(tenant, **given)])[0].service_call_id


class ManualEngine:
    """A node that owns every free shard, and takes the engine's steps one at a time, without egress."""

    def __init__(self, num_shards: int = 16) -> None:
        self.membership = Membership()
        self.membership.join()
        ensure_shards(num_shards)
        for shard in range(num_shards):
            self.membership.leases.claim(shard)
        self.poller = Poller(self.membership.leases, list_tenant_ids)

    def start(self, limit: int = 1000) -> list[StartedCall]:
        with transaction.atomic():
            return lifecycle.start(self.poller.claim_due(limit), self.membership.owner_id)

    def start_one(self) -> StartedCall:
        (started,) = self.start()
        return started

    def finish(self, *ended: tuple[StartedCall, Outcome]) -> int:
        return lifecycle.finish([(call.key, outcome) for call, outcome in ended], self.membership.fence)


# --- outcomes ---


def build_response(
    call: Any = None,
    status: int = 200,
    body: bytes = b'{"ok": true}',
    headers: Mapping[str, str] = NO_HEADERS,
) -> Responded:
    return Responded(_key(call), status, tuple(headers.items()), body, len(body), Timings(total_ms=12.34))


def build_error(call: Any = None, kind: ErrorKind = ErrorKind.CONNECT, *, sent: bool = False) -> Errored:
    return Errored(_key(call), kind, "It did not work.", {"phase": "x"}, Timings(total_ms=5.0), sent)


def _key(call: Any) -> Any:
    return call.key.execution_id if isinstance(call, StartedCall) else call


# --- what the tables hold ---


def get_call(tenant: Any, service_call_id: uuid.UUID) -> Any:
    return ServiceCall.objects.for_tenant(tenant.tenant_id).get(service_call_id=service_call_id)


def get_status(tenant: Any, service_call_id: uuid.UUID) -> str:
    return str(get_call(tenant, service_call_id).status)


def find_timer(tenant: Any, service_call_id: uuid.UUID) -> TimerSchedule | None:
    timers = TimerSchedule.objects.for_tenant(tenant.tenant_id)
    return timers.filter(service_call_id=service_call_id).first()


def list_attempts(tenant: Any, service_call_id: uuid.UUID) -> list[Any]:
    rows = HttpExecution.objects.for_tenant(tenant.tenant_id).filter(service_call_id=service_call_id)
    return list(rows.order_by("attempt"))


def list_events(tenant: Any, service_call_id: uuid.UUID) -> list[OutboxEvent]:
    """Return the call's events in order, and assert that they are numbered without a gap."""
    rows = OutboxEvent.objects.for_tenant(tenant.tenant_id).filter(aggregate_id=service_call_id)
    events = list(rows.order_by("aggregate_seq"))
    assert [event.aggregate_seq for event in events] == list(range(1, len(events) + 1))
    return events


def list_event_types(tenant: Any, service_call_id: uuid.UUID) -> list[str]:
    return [event.event_type for event in list_events(tenant, service_call_id)]


def read_all_rows() -> list[list[dict[str, Any]]]:
    """Return every call, timer and event as it stands."""
    models: list[Any] = [ServiceCall, TimerSchedule, OutboxEvent]
    return [sorted(model.across_tenants.values(), key=str) for model in models]


# --- the engine ---


class FakeClock:
    """A clock that stands still until it is advanced."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


class FakeWatch(ChangeWatch):
    """A change watch that sees a change when the test announces one."""

    pause = 1.0

    def __init__(self) -> None:
        self._changed = False

    def announce(self) -> None:
        self._changed = True

    def has_changed(self) -> bool:
        changed, self._changed = self._changed, False
        return changed

    def record_work(self) -> None: ...


class FakeEgress:
    """An egress that remembers what it was to send, and returns what the test lets arrive. Waiting passes the time."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.sent: list[Attempt] = []
        self.naps: list[float] = []
        self.arrived: list[Outcome] = []
        self.capacity = 1000
        self.closed = False

    def send(self, attempts: list[Attempt]) -> None:
        self.sent += attempts

    def collect(self, timeout: float) -> list[Outcome]:
        self.naps.append(timeout)
        self.clock.advance(timeout)
        outcomes, self.arrived = self.arrived, []
        return outcomes

    def wake(self) -> None: ...

    def close(self) -> None:
        self.closed = True

    def answer(self, *numbers: int, status: int = 200) -> None:
        """Let responses arrive for the attempts with these numbers, or for all that were sent."""
        keys = [attempt.key for attempt in self.sent]
        self.arrived += [build_response(keys[number], status) for number in numbers or range(len(keys))]


class SteppedEngine(Engine):
    """An engine on the egress's clock, which passes only where the test, or a wait, advances it."""

    def __init__(self, egress: Any, limits: EngineLimits, poll_seconds: float = MAX_NAP_SECONDS) -> None:
        self.clock: FakeClock = egress.clock
        self.watch = FakeWatch()
        super().__init__(
            egress,
            limits,
            clock=self.clock,
            sleep=self.clock.advance,
            watch=self.watch,
            poll_seconds=poll_seconds,
        )

    def poll_now(self) -> PassResult:
        """Make one pass that looks for due timers, as after another connection's commit."""
        self.watch.announce()
        return self.poll_once(0.0)

    def poll_after(self, seconds: float) -> PassResult:
        """Make one such pass when that much time has passed."""
        self.clock.advance(seconds)
        return self.poll_now()


def build_engine(egress: Any, **limits: int) -> SteppedEngine:
    return SteppedEngine(egress, EngineLimits(**limits))


@contextmanager
def database_unavailable(statement: str) -> Iterator[None]:
    """Let every statement that begins like this fail, as it would when the connection is lost."""

    def refuse(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.translate(UNQUOTED).startswith(statement):
            raise OperationalError("the database is unavailable")
        return execute(sql, params, many, context)

    with connection.execute_wrapper(refuse):
        yield


def add_to_noon(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)

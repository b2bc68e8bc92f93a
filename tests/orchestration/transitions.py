"""How to get a call into each status, and every move that exists from there."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from django.db import transaction

from eventservice.kernel.errors import Conflict
from eventservice.kernel.ids import new_id
from execution.attempt_log import AttemptKey
from orchestration import lifecycle
from orchestration.lifecycle import StartedCall
from orchestration.retries import RetryPolicy
from orchestration.states import Delivery, Status
from tests.orchestration.support import (
    ManualEngine,
    add_to_noon,
    build_command,
    build_error,
    build_response,
    submit,
)
from timers.port import Timer

TIMER_ID = "order-1"
DURABLE = {"external_id": TIMER_ID}
AGAIN = {"retry_policy": RetryPolicy(max_attempts=3, initial_interval=10)}
AT_MOST_ONCE = {"delivery": Delivery.AT_MOST_ONCE}


@dataclass
class CallInStatus:
    """A call in some status, with its last attempt if it has had one."""

    tenant_id: uuid.UUID
    service_call_id: uuid.UUID
    attempt: StartedCall | None = None

    @property
    def key(self) -> AttemptKey:
        return (
            self.attempt.key if self.attempt else AttemptKey(self.tenant_id, self.service_call_id, new_id())
        )


def create_scheduled(manual_engine: ManualEngine, tenant: Any, **terms: Any) -> CallInStatus:
    return CallInStatus(tenant.tenant_id, submit(tenant, **terms))


def create_running(
    manual_engine: ManualEngine, tenant: Any, *, to_be_canceled: bool = False, **terms: Any
) -> CallInStatus:
    call = create_scheduled(manual_engine, tenant, **terms)
    call.attempt = manual_engine.start_one()
    if to_be_canceled:
        cancel(manual_engine, call)
    return call


def create_succeeded(manual_engine: ManualEngine, tenant: Any, **terms: Any) -> CallInStatus:
    call = create_running(manual_engine, tenant, **terms)
    succeed(manual_engine, call)
    return call


def create_failed(manual_engine: ManualEngine, tenant: Any, **terms: Any) -> CallInStatus:
    call = create_running(manual_engine, tenant, **terms)
    fail(manual_engine, call)
    return call


def create_canceled(manual_engine: ManualEngine, tenant: Any, **terms: Any) -> CallInStatus:
    call = create_scheduled(manual_engine, tenant, **terms)
    cancel(manual_engine, call)
    return call


MAKE_CALL_IN: dict[str, Callable[..., CallInStatus]] = {
    Status.SCHEDULED: create_scheduled,
    Status.RUNNING: create_running,
    Status.SUCCEEDED: create_succeeded,
    Status.FAILED: create_failed,
    Status.CANCELED: create_canceled,
}


# --- what can be tried on a call in any status ---


def start(manual_engine: ManualEngine, call: CallInStatus) -> None:
    due = Timer(call.tenant_id, call.service_call_id, new_id(), add_to_noon(0), 0, "target.test")
    with transaction.atomic():
        lifecycle.start([due], manual_engine.membership.owner_id)


def succeed(manual_engine: ManualEngine, call: CallInStatus) -> None:
    lifecycle.finish([(call.key, build_response())], manual_engine.membership.fence)


def fail(manual_engine: ManualEngine, call: CallInStatus) -> None:
    lifecycle.finish([(call.key, build_response(status=404))], manual_engine.membership.fence)


def fail_for_now(manual_engine: ManualEngine, call: CallInStatus) -> None:
    lifecycle.finish([(call.key, build_error())], manual_engine.membership.fence)


def interrupt(manual_engine: ManualEngine, call: CallInStatus) -> None:
    lifecycle.resolve_interrupted([call.key])


def cancel(manual_engine: ManualEngine, call: CallInStatus) -> None:
    lifecycle.cancel(call.tenant_id, call.service_call_id)


def reschedule(manual_engine: ManualEngine, call: CallInStatus) -> None:
    lifecycle.reschedule(call.tenant_id, call.service_call_id, add_to_noon(600))


def run_now(manual_engine: ManualEngine, call: CallInStatus) -> None:
    lifecycle.reschedule(call.tenant_id, call.service_call_id, None)


def submit_again(manual_engine: ManualEngine, call: CallInStatus) -> None:
    submit(SimpleNamespace(tenant_id=call.tenant_id), service_call_id=call.service_call_id)


def edit(manual_engine: ManualEngine, call: CallInStatus) -> None:
    lifecycle.edit(call.tenant_id, call.service_call_id, due_at=add_to_noon(600))


def set_timer(manual_engine: ManualEngine, call: CallInStatus) -> None:
    tenant = SimpleNamespace(tenant_id=call.tenant_id)
    lifecycle.set_timer(build_command(tenant, external_id=TIMER_ID, due_at=add_to_noon(600)))


def replay(manual_engine: ManualEngine, call: CallInStatus) -> None:
    lifecycle.replay(call.tenant_id, call.service_call_id, new_id())


def delete(manual_engine: ManualEngine, call: CallInStatus) -> None:
    lifecycle.delete(call.tenant_id, call.service_call_id)


# What moves a call, and what makes another call or deletes one.
MOVING = (start, succeed, fail, fail_for_now, interrupt, cancel, reschedule, run_now, edit, submit_again)
OTHERS = (set_timer, replay, delete)
REFUSING = (cancel, reschedule, run_now, edit, submit_again, *OTHERS)


def is_accepted(
    function: Callable[[ManualEngine, CallInStatus], None], manual_engine: ManualEngine, call: CallInStatus
) -> bool:
    """Return False if it was refused. Only commands are refused; the engine's functions skip the call."""
    try:
        function(manual_engine, call)
    except Conflict:
        assert function in REFUSING
        return False
    return True


@dataclass
class Move:
    origin: Status
    to: Status
    function: str
    make: Callable[[ManualEngine, CallInStatus], None]
    terms: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.origin}-{self.make.__name__}-{self.to}"


CANCEL_FIRST = {"to_be_canceled": True}
MOVES = [
    Move(Status.SCHEDULED, Status.SCHEDULED, "reschedule", reschedule),
    Move(Status.SCHEDULED, Status.SCHEDULED, "set_timer", set_timer, DURABLE),
    Move(Status.SCHEDULED, Status.CANCELED, "cancel", cancel),
    Move(Status.SCHEDULED, Status.RUNNING, "start", start),
    Move(Status.RUNNING, Status.RUNNING, "cancel", cancel),
    Move(Status.RUNNING, Status.SUCCEEDED, "finish", succeed, CANCEL_FIRST),
    Move(Status.RUNNING, Status.FAILED, "finish", fail, AGAIN),
    Move(Status.RUNNING, Status.SCHEDULED, "finish", fail_for_now, AGAIN),
    Move(Status.RUNNING, Status.CANCELED, "finish", fail_for_now, {**AGAIN, **CANCEL_FIRST}),
    Move(Status.RUNNING, Status.SCHEDULED, "resolve_interrupted", interrupt),
    Move(Status.RUNNING, Status.FAILED, "resolve_interrupted", interrupt, AT_MOST_ONCE),
    Move(Status.RUNNING, Status.CANCELED, "resolve_interrupted", interrupt, CANCEL_FIRST),
]

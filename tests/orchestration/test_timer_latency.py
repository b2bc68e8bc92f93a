"""Whatever sets a due time registers it anew, so that a timer's latency is right for every attempt."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from eventservice.db.now import pin_time
from orchestration import lifecycle
from orchestration.retries import RetryPolicy
from tests.orchestration.support import (
    ManualEngine,
    add_to_noon,
    build_command,
    build_error,
    find_timer,
    submit,
)

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]

DURABLE = {"external_id": "order-1"}
RETRIED = RetryPolicy(max_attempts=3, initial_interval=60.0)


def get_timer(tenant: Any, service_call_id: UUID) -> Any:
    timer = find_timer(tenant, service_call_id)
    assert timer is not None
    return timer


def reschedule(tenant: Any, call: UUID) -> None:
    lifecycle.reschedule(tenant.tenant_id, call, add_to_noon(30))


def run_now(tenant: Any, call: UUID) -> None:
    lifecycle.reschedule(tenant.tenant_id, call, None)


def edit(tenant: Any, call: UUID) -> None:
    lifecycle.edit(tenant.tenant_id, call, due_at=add_to_noon(30))


def set_timer(tenant: Any, call: UUID) -> None:
    lifecycle.set_timer(build_command(tenant, due_at=add_to_noon(30), **DURABLE))


@pytest.mark.parametrize("change", [reschedule, run_now, edit, set_timer])
def test_a_changed_due_time_is_registered_when_it_is_changed(
    manual_engine: ManualEngine, tenant: Any, change: Callable[[Any, UUID], None]
) -> None:
    call = submit(tenant, due_at=add_to_noon(3600), **DURABLE)
    with pin_time(add_to_noon(10)):
        change(tenant, call)
    assert get_timer(tenant, call).registered_at == add_to_noon(10)
    with pin_time(add_to_noon(30)):
        manual_engine.start_one()
    timer = get_timer(tenant, call)
    assert timer.reached_at - timer.registered_at == timedelta(seconds=20)


def fail(engine: ManualEngine, started: lifecycle.StartedCall) -> None:
    engine.finish((started, build_error()))


def interrupt(engine: ManualEngine, started: lifecycle.StartedCall) -> None:
    lifecycle.resolve_interrupted([started.key])


@pytest.mark.parametrize("end", [fail, interrupt])
def test_a_retry_is_registered_when_the_attempt_before_it_ends(
    manual_engine: ManualEngine, tenant: Any, end: Callable[[ManualEngine, lifecycle.StartedCall], None]
) -> None:
    call = submit(tenant, retry_policy=RETRIED)
    started = manual_engine.start_one()
    assert get_timer(tenant, call).registered_at == add_to_noon(0)
    with pin_time(add_to_noon(10)):
        end(manual_engine, started)
    assert get_timer(tenant, call).registered_at == add_to_noon(10)
    with pin_time(add_to_noon(100)):
        manual_engine.start_one()
    timer = get_timer(tenant, call)
    assert timer.reached_at - timer.registered_at == timedelta(seconds=90)


def test_what_keeps_the_due_time_keeps_when_it_was_registered(
    manual_engine: ManualEngine, tenant: Any
) -> None:
    call = submit(tenant, due_at=add_to_noon(60))
    with pin_time(add_to_noon(10)):
        lifecycle.edit(tenant.tenant_id, call, name="renamed", tags=["x"])
    with pin_time(add_to_noon(60)):
        manual_engine.start_one()
    assert get_timer(tenant, call).registered_at == add_to_noon(0)

"""Only a Scheduled call can get another due time or be made due now."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from eventservice.db.now import pin_time
from eventservice.kernel.errors import Conflict, NotFound
from orchestration import lifecycle
from orchestration.retries import RetryPolicy
from tests.orchestration.support import (
    ManualEngine,
    add_to_noon,
    build_error,
    find_timer,
    get_call,
    list_events,
    read_all_rows,
    submit,
)

pytestmark = pytest.mark.django_db


def read_due_times(tenant: Any, service_call_id: Any) -> set[datetime]:
    timer = find_timer(tenant, service_call_id)
    assert timer is not None
    return {get_call(tenant, service_call_id).due_at, timer.due_at}


def test_call_timer_and_event_get_the_new_due_time(manual_engine: ManualEngine, tenant: Any) -> None:
    service_call_id = submit(tenant, due_at=add_to_noon(60))
    lifecycle.reschedule(tenant.tenant_id, service_call_id, add_to_noon(600))

    assert read_due_times(tenant, service_call_id) == {add_to_noon(600)}
    told = list_events(tenant, service_call_id)[-1]
    assert (told.event_type, told.event_payload) == (
        "ServiceCallRescheduled",
        {"dueAt": "2026-03-01T12:10:00.000Z"},
    )
    with pin_time(add_to_noon(599)):
        assert manual_engine.start() == []
    with pin_time(add_to_noon(600)):
        assert len(manual_engine.start()) == 1


def test_a_call_can_be_rescheduled_to_an_earlier_time(manual_engine: ManualEngine, tenant: Any) -> None:
    service_call_id = submit(tenant, due_at=add_to_noon(600))
    lifecycle.reschedule(tenant.tenant_id, service_call_id, add_to_noon(60))
    with pin_time(add_to_noon(60)):
        assert len(manual_engine.start()) == 1


def test_a_call_without_a_new_time_is_due_now(
    manual_engine: ManualEngine, tenant: Any, at_noon: datetime
) -> None:
    service_call_id = submit(tenant, due_at=add_to_noon(600))
    lifecycle.reschedule(tenant.tenant_id, service_call_id, None)
    assert read_due_times(tenant, service_call_id) == {at_noon}
    assert len(manual_engine.start()) == 1


def test_a_call_that_waits_for_a_retry_can_be_made_due_now(manual_engine: ManualEngine, tenant: Any) -> None:
    service_call_id = submit(tenant, retry_policy=RetryPolicy(max_attempts=2, initial_interval=3600))
    manual_engine.finish((manual_engine.start_one(), build_error()))
    lifecycle.reschedule(tenant.tenant_id, service_call_id, None)
    assert manual_engine.start_one().attempt == 2


def test_a_running_call_cannot_be_rescheduled(manual_engine: ManualEngine, tenant: Any) -> None:
    service_call_id = submit(tenant)
    manual_engine.start()
    before = read_all_rows()
    with pytest.raises(Conflict) as refused:
        lifecycle.reschedule(tenant.tenant_id, service_call_id, add_to_noon(60))
    assert refused.value.code == "wrong_state"
    assert read_all_rows() == before


def test_another_tenants_call_cannot_be_rescheduled(tenant: Any, intruder: Any, at_noon: datetime) -> None:
    service_call_id = submit(tenant)
    before = read_all_rows()
    with pytest.raises(NotFound):
        lifecycle.reschedule(intruder.tenant_id, service_call_id, add_to_noon(60))
    assert read_all_rows() == before

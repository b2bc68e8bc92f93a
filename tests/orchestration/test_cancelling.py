"""Canceling ends a Scheduled call at once, and a Running one when its attempt has ended."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from eventservice.kernel.errors import Conflict, NotFound
from eventservice.kernel.ids import new_id
from orchestration import lifecycle
from orchestration.retries import RetryPolicy
from tests.orchestration.support import (
    ManualEngine,
    build_error,
    build_response,
    find_timer,
    get_call,
    get_status,
    list_event_types,
    read_all_rows,
    submit,
)

pytestmark = pytest.mark.django_db


def test_a_scheduled_call_is_canceled_at_once_with_its_timer(
    manual_engine: ManualEngine, tenant: Any, at_noon: datetime
) -> None:
    service_call_id = submit(tenant)
    assert lifecycle.cancel(tenant.tenant_id, service_call_id) == "Canceled"
    call = get_call(tenant, service_call_id)
    assert (call.status, call.finished_at, call.attempt) == ("Canceled", at_noon, 0)
    assert find_timer(tenant, service_call_id) is None
    assert manual_engine.start() == []


def test_a_running_call_is_canceled_when_its_attempt_has_ended(
    manual_engine: ManualEngine, tenant: Any
) -> None:
    service_call_id = submit(tenant, retry_policy=RetryPolicy(max_attempts=5))
    started = manual_engine.start_one()
    told = list_event_types(tenant, service_call_id)

    assert lifecycle.cancel(tenant.tenant_id, service_call_id) == "Running"
    assert lifecycle.cancel(tenant.tenant_id, service_call_id) == "Running"

    assert list_event_types(tenant, service_call_id) == told
    manual_engine.finish((started, build_error()))
    assert get_status(tenant, service_call_id) == "Canceled"
    assert list_event_types(tenant, service_call_id) == [*told, "ServiceCallCanceled"]
    assert manual_engine.start() == []


def test_a_success_wins_over_the_cancel(manual_engine: ManualEngine, tenant: Any) -> None:
    service_call_id = submit(tenant)
    started = manual_engine.start_one()
    lifecycle.cancel(tenant.tenant_id, service_call_id)
    manual_engine.finish((started, build_response()))
    assert get_status(tenant, service_call_id) == "Succeeded"


def test_a_canceled_call_keeps_the_outcome_of_its_last_attempt(
    manual_engine: ManualEngine, tenant: Any
) -> None:
    service_call_id = submit(tenant)
    started = manual_engine.start_one()
    lifecycle.cancel(tenant.tenant_id, service_call_id)
    manual_engine.finish((started, build_response(status=503)))
    assert get_call(tenant, service_call_id).outcome_meta["responseMeta"]["status"] == 503


def test_a_call_between_two_attempts_is_canceled_at_once(manual_engine: ManualEngine, tenant: Any) -> None:
    service_call_id = submit(tenant, retry_policy=RetryPolicy(max_attempts=5))
    manual_engine.finish((manual_engine.start_one(), build_error()))
    assert lifecycle.cancel(tenant.tenant_id, service_call_id) == "Canceled"
    assert find_timer(tenant, service_call_id) is None


def test_a_canceled_timers_id_can_be_used_again(tenant: Any, at_noon: datetime) -> None:
    lifecycle.cancel(tenant.tenant_id, submit(tenant, external_id="order-1"))
    assert get_status(tenant, submit(tenant, external_id="order-1")) == "Scheduled"


def test_a_call_that_has_ended_cannot_be_canceled(manual_engine: ManualEngine, tenant: Any) -> None:
    service_call_id = submit(tenant)
    manual_engine.finish((manual_engine.start_one(), build_response()))
    with pytest.raises(Conflict) as refused:
        lifecycle.cancel(tenant.tenant_id, service_call_id)
    assert (refused.value.code, "Succeeded" in refused.value.message) == ("wrong_state", True)


def test_another_tenants_call_is_not_found(tenant: Any, intruder: Any, at_noon: datetime) -> None:
    service_call_id = submit(tenant)
    before = read_all_rows()
    for unknown in (service_call_id, new_id()):
        with pytest.raises(NotFound):
            lifecycle.cancel(intruder.tenant_id, unknown)
    assert read_all_rows() == before

"""The lifecycle itself refuses new calls of an inactive tenant and beyond the pending limit, whoever calls it."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from eventservice.kernel.ids import new_id
from eventservice.tenants.directory import update_tenant
from orchestration import admission, lifecycle
from orchestration.admission import PendingLimitReached, TenantInactive
from orchestration.lifecycle import Submitted
from orchestration.models import ServiceCall
from tests.factories import set_status
from tests.orchestration.support import ManualEngine, add_to_noon, build_command, build_response, submit

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]

TIMER = {"external_id": "order-1", "due_at": add_to_noon(60)}


@pytest.fixture(autouse=True)
def no_allowances() -> None:
    admission.forget_allowances()


def change(tenant: Any, **settings: Any) -> None:
    update_tenant(tenant.tenant_id, **settings)
    admission.forget_allowances()


def count_calls(tenant: Any) -> int:
    return ServiceCall.objects.for_tenant(tenant.tenant_id).count()


def fail_one(tenant: Any, manual_engine: ManualEngine) -> uuid.UUID:
    service_call_id = submit(tenant)
    started = manual_engine.start_one()
    manual_engine.finish((started, build_response(started, 500)))
    return service_call_id


# Everything that makes a call, given a failed one.
Maker = Callable[[Any, uuid.UUID], Any]
MAKERS: dict[str, Maker] = {
    "submit": lambda tenant, _: submit(tenant, due_at=add_to_noon(60)),
    "submit each": lambda tenant, _: lifecycle.submit_each([build_command(tenant, due_at=add_to_noon(60))]),
    "replay": lambda tenant, failed: lifecycle.replay(tenant.tenant_id, failed, new_id()),
    "retry": lambda tenant, failed: lifecycle.retry(tenant.tenant_id, failed, new_id()),
    "set a timer": lambda tenant, _: lifecycle.set_timer(build_command(tenant, **TIMER)),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_an_inactive_tenant_gets_no_new_calls(tenant: Any, manual_engine: ManualEngine, make: Maker) -> None:
    failed = fail_one(tenant, manual_engine)
    change(tenant, active=False)
    with pytest.raises(TenantInactive):
        make(tenant, failed)
    assert count_calls(tenant) == 1


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_the_pending_limit_can_be_reached_and_not_exceeded(
    tenant: Any, manual_engine: ManualEngine, make: Maker
) -> None:
    failed = fail_one(tenant, manual_engine)
    submit(tenant, due_at=add_to_noon(60))
    change(tenant, max_pending=1)
    with pytest.raises(PendingLimitReached) as refused:
        make(tenant, failed)
    assert refused.value.message == "The pending limit of this tenant is 1. There is room for 0 more."
    assert count_calls(tenant) == 2
    change(tenant, max_pending=2)
    make(tenant, failed)
    assert count_calls(tenant) == 3


def test_a_lowered_limit_applies_to_the_room_that_was_counted_before(tenant: Any) -> None:
    submit(tenant, due_at=add_to_noon(60))
    update_tenant(tenant.tenant_id, max_pending=2)
    submit(tenant, due_at=add_to_noon(60))
    with pytest.raises(PendingLimitReached):
        submit(tenant, due_at=add_to_noon(60))


def test_an_inactive_tenants_timer_cannot_be_changed(tenant: Any) -> None:
    lifecycle.set_timer(build_command(tenant, **TIMER))
    change(tenant, active=False)
    with pytest.raises(TenantInactive):
        lifecycle.change_timer(tenant.tenant_id, "default", "order-1", lambda call: build_command(tenant))


def test_repeats_under_an_idempotency_key_need_no_room(tenant: Any) -> None:
    first = submit(tenant, due_at=add_to_noon(60), idempotency_key="a")
    change(tenant, max_pending=2)
    commands = [build_command(tenant, due_at=add_to_noon(60), idempotency_key=key) for key in ("a", "b", "b")]
    results = lifecycle.submit(commands)
    assert [result.is_repeat for result in results] == [True, False, True]
    assert results[0].service_call_id == first
    assert lifecycle.submit(commands[:1]) == [Submitted(first, is_repeat=True)]


def test_a_pending_timer_is_overwritten_and_replaced_without_room(
    tenant: Any, manual_engine: ManualEngine
) -> None:
    lifecycle.set_timer(build_command(tenant, **TIMER))
    change(tenant, max_pending=1)
    lifecycle.set_timer(build_command(tenant, **TIMER, name="overwritten"))
    # A timer that has been sent before is replaced by another call.
    set_status(ServiceCall.objects.for_tenant(tenant.tenant_id), "Scheduled", attempt=1)
    lifecycle.set_timer(build_command(tenant, **TIMER, name="replaced"))
    calls = ServiceCall.objects.for_tenant(tenant.tenant_id).order_by("submitted_at", "service_call_id")
    assert list(calls.values_list("name", "status")) == [
        ("overwritten", "Canceled"),
        ("replaced", "Scheduled"),
    ]


def test_a_batch_beyond_the_limit_stores_nothing_even_if_refused_calls_would_not_count(tenant: Any) -> None:
    submit(tenant, due_at=add_to_noon(60), idempotency_key="a")
    change(tenant, max_pending=2)
    commands = [build_command(tenant, due_at=add_to_noon(60), idempotency_key="a", name="another request")]
    commands += [build_command(tenant, due_at=add_to_noon(60)) for _ in range(2)]
    with pytest.raises(PendingLimitReached):
        lifecycle.submit_each(commands)
    assert count_calls(tenant) == 1
    assert isinstance(lifecycle.submit_each(commands[:2])[1], Submitted)


def test_pending_calls_are_not_counted_at_each_submission(tenant: Any) -> None:
    submit(tenant)
    with CaptureQueriesContext(connection) as queries:
        for _ in range(3):
            submit(tenant)
    assert not [query for query in queries if "COUNT(" in query["sql"]]


def test_each_tenant_has_its_own_limit(tenant: Any, intruder: Any) -> None:
    change(tenant, max_pending=0)
    submit(intruder, due_at=add_to_noon(60))
    with pytest.raises(PendingLimitReached):
        lifecycle.submit([build_command(one, due_at=add_to_noon(60)) for one in (intruder, tenant)])
    assert count_calls(intruder) == 1

"""A durable timer is addressed by its namespace and id, and can be set again while it is pending and after it has ended."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from eventservice.db.now import pin_time
from eventservice.kernel.errors import Conflict, NotFound
from eventservice.tenants.directory import declare_namespace
from orchestration import lifecycle
from orchestration.commands import RequestSpec, SubmitServiceCall
from orchestration.models import ServiceCall
from orchestration.retries import RetryPolicy
from orchestration.states import ResponseContract
from tests.orchestration.support import (
    URL,
    ManualEngine,
    add_to_noon,
    build_command,
    build_error,
    build_response,
    find_timer,
    get_call,
    list_event_types,
    read_all_rows,
)

pytestmark = pytest.mark.django_db


def build_timer_command(tenant: Any, **given: Any) -> SubmitServiceCall:
    values = {
        "external_id": "order-1",
        "due_at": add_to_noon(60),
        "request": RequestSpec("POST", URL, {}, {"payload": 1}),
        "response_contract": ResponseContract.CALLBACK,
    }
    return build_command(tenant, **{**values, **given})


def list_calls(tenant: Any) -> list[ServiceCall]:
    return list(ServiceCall.objects.for_tenant(tenant.tenant_id).order_by("service_call_id"))


def test_a_new_timer_is_a_call_like_any_other(tenant: Any, at_noon: datetime) -> None:
    lifecycle.set_timer(build_timer_command(tenant))
    (call,) = list_calls(tenant)
    assert (call.status, call.external_id, call.due_at) == ("Scheduled", "order-1", add_to_noon(60))
    assert list_event_types(tenant, call.service_call_id) == ["ServiceCallSubmitted", "ServiceCallScheduled"]


def test_a_timer_that_is_set_again_stays_the_same_call(tenant: Any, at_noon: datetime) -> None:
    lifecycle.set_timer(build_timer_command(tenant))
    (before,) = list_calls(tenant)
    request = RequestSpec("POST", "http://other.test/", {}, {"payload": 2})
    policy = RetryPolicy(max_attempts=3)

    lifecycle.set_timer(
        build_timer_command(
            tenant, due_at=add_to_noon(30), request=request, retry_policy=policy, timeout_seconds=5.0
        )
    )

    (call,) = list_calls(tenant)
    assert call.service_call_id == before.service_call_id
    assert (call.due_at, call.host, call.timeout_seconds) == (add_to_noon(30), "other.test", 5.0)
    assert call.request_spec["body"] == {"payload": 2}
    assert RetryPolicy.from_stored(call.retry_policy) == policy
    timer = find_timer(tenant, call.service_call_id)
    assert timer is not None
    assert (timer.due_at, timer.host, timer.correlation_id) == (
        add_to_noon(30),
        "other.test",
        before.correlation_id,
    )


def test_the_callback_gets_the_number_of_the_attempt(tenant: Any, manual_engine: ManualEngine) -> None:
    lifecycle.set_timer(
        build_timer_command(tenant, due_at=None, retry_policy=RetryPolicy(max_attempts=2, initial_interval=0))
    )
    first = manual_engine.start_one()
    manual_engine.finish((first, build_error()))
    assert [first.request.body, manual_engine.start_one().request.body] == [
        {"payload": 1, "attempt": 1},
        {"payload": 1, "attempt": 2},
    ]


def test_a_running_timer_cannot_be_set(tenant: Any, manual_engine: ManualEngine) -> None:
    lifecycle.set_timer(build_timer_command(tenant, due_at=None))
    manual_engine.start()
    before = read_all_rows()
    with pytest.raises(Conflict):
        lifecycle.set_timer(build_timer_command(tenant))
    assert read_all_rows() == before


@pytest.mark.parametrize(
    ("answer", "status"),
    [(b'{"ok": true}', "Succeeded"), (b'{"ok": false, "nextExecuteAt": "2030-01-01T00:00:00Z"}', "Canceled")],
)
def test_the_running_attempt_of_a_deleted_timer_counts_and_is_the_last(
    tenant: Any, manual_engine: ManualEngine, answer: bytes, status: str
) -> None:
    lifecycle.set_timer(
        build_timer_command(tenant, due_at=None, retry_policy=RetryPolicy(max_attempts=2, initial_interval=0))
    )
    running = manual_engine.start_one()
    lifecycle.delete_timer(tenant.tenant_id, "default", "order-1")
    manual_engine.finish((running, build_response(body=answer)))
    assert [call.status for call in list_calls(tenant)] == [status]


def test_a_timer_between_attempts_is_replaced_by_a_new_call(tenant: Any, manual_engine: ManualEngine) -> None:
    lifecycle.set_timer(
        build_timer_command(
            tenant, due_at=None, retry_policy=RetryPolicy(max_attempts=2, initial_interval=60)
        )
    )
    manual_engine.finish((manual_engine.start_one(), build_error()))
    lifecycle.set_timer(build_timer_command(tenant))
    assert [call.status for call in list_calls(tenant)] == ["Canceled", "Scheduled"]


def test_the_id_of_an_ended_timer_is_free_and_its_history_stays(
    tenant: Any, manual_engine: ManualEngine
) -> None:
    lifecycle.set_timer(build_timer_command(tenant, due_at=None))
    manual_engine.finish((manual_engine.start_one(), build_response()))
    lifecycle.set_timer(build_timer_command(tenant))
    assert [call.status for call in list_calls(tenant)] == ["Succeeded", "Scheduled"]


def test_namespaces_and_tenants_do_not_share_ids(tenant: Any, intruder: Any, at_noon: datetime) -> None:
    declare_namespace(tenant.tenant_id, "orders", 4)
    for one in (
        build_timer_command(tenant),
        build_timer_command(tenant, namespace="orders"),
        build_timer_command(intruder),
    ):
        lifecycle.set_timer(one)
    assert (len(list_calls(tenant)), len(list_calls(intruder))) == (2, 1)


def test_a_change_starts_from_the_stored_timer(tenant: Any, at_noon: datetime) -> None:
    lifecycle.set_timer(build_timer_command(tenant))
    (before,) = list_calls(tenant)

    def later(call: ServiceCall) -> SubmitServiceCall:
        assert call.due_at == add_to_noon(60)
        return replace(build_timer_command(tenant), due_at=add_to_noon(90))

    lifecycle.change_timer(tenant.tenant_id, "default", "order-1", later)
    assert get_call(tenant, before.service_call_id).due_at == add_to_noon(90)


def test_only_a_pending_timer_can_be_changed(tenant: Any, intruder: Any, manual_engine: ManualEngine) -> None:
    lifecycle.set_timer(build_timer_command(tenant, due_at=None))
    with pytest.raises(NotFound):
        lifecycle.change_timer(
            intruder.tenant_id, "default", "order-1", lambda call: build_timer_command(intruder)
        )
    manual_engine.finish((manual_engine.start_one(), build_response()))
    with pytest.raises(NotFound):
        lifecycle.change_timer(
            tenant.tenant_id, "default", "order-1", lambda call: build_timer_command(tenant)
        )


@pytest.mark.django_db(transaction=True)
def test_setting_a_timer_many_times_at_once_makes_one_call(
    tenant: Any, elsewhere: Callable[..., Future[Any]]
) -> None:
    def set_it(number: int) -> None:
        with pin_time(add_to_noon(0)):
            lifecycle.set_timer(build_timer_command(tenant, due_at=add_to_noon(number + 1)))

    for future in [elsewhere(set_it, number) for number in range(8)]:
        future.result(30)

    (call,) = list_calls(tenant)
    timer = find_timer(tenant, call.service_call_id)
    assert timer is not None
    assert timer.due_at == call.due_at
    assert len(list_event_types(tenant, call.service_call_id)) == 9

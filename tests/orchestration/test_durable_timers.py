"""A durable timer is set by its namespace and id: again while it waits, anew once it has ended."""

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
    after,
    build_command,
    build_error,
    build_response,
    find_timer,
    get_call,
    list_event_types,
    read_all_rows,
)

pytestmark = pytest.mark.django_db


def asked(tenant: Any, **given: Any) -> SubmitServiceCall:
    values = {
        "external_id": "order-1",
        "due_at": after(60),
        "request": RequestSpec("POST", URL, {}, {"payload": 1}),
        "response_contract": ResponseContract.CALLBACK,
    }
    return build_command(tenant, **{**values, **given})


def calls(tenant: Any) -> list[ServiceCall]:
    return list(ServiceCall.objects.for_tenant(tenant.tenant_id).order_by("service_call_id"))


def test_a_new_one_is_a_call_like_any_other(tenant: Any, at_noon: datetime) -> None:
    lifecycle.set_timer(asked(tenant))
    (call,) = calls(tenant)
    assert (call.status, call.external_id, call.due_at) == ("Scheduled", "order-1", after(60))
    assert list_event_types(tenant, call.service_call_id) == ["ServiceCallSubmitted", "ServiceCallScheduled"]


def test_set_again_it_is_the_same_call_with_what_is_new(tenant: Any, at_noon: datetime) -> None:
    lifecycle.set_timer(asked(tenant))
    (before,) = calls(tenant)
    request = RequestSpec("POST", "http://other.test/", {}, {"payload": 2})
    policy = RetryPolicy(max_attempts=3)

    lifecycle.set_timer(
        asked(tenant, due_at=after(30), request=request, retry_policy=policy, timeout_seconds=5.0)
    )

    (call,) = calls(tenant)
    assert call.service_call_id == before.service_call_id
    assert (call.due_at, call.host, call.timeout_seconds) == (after(30), "other.test", 5.0)
    assert call.request_spec["body"] == {"payload": 2}
    assert RetryPolicy.from_stored(call.retry_policy) == policy
    timer = find_timer(tenant, call.service_call_id)
    assert timer is not None
    assert (timer.due_at, timer.host, timer.correlation_id) == (
        after(30),
        "other.test",
        before.correlation_id,
    )


def test_its_callback_is_told_the_number_of_the_attempt(tenant: Any, manual_engine: ManualEngine) -> None:
    lifecycle.set_timer(
        asked(tenant, due_at=None, retry_policy=RetryPolicy(max_attempts=2, initial_interval=0))
    )
    first = manual_engine.start_one()
    manual_engine.finish((first, build_error()))
    assert [first.request.body, manual_engine.start_one().request.body] == [
        {"payload": 1, "attempt": 1},
        {"payload": 1, "attempt": 2},
    ]


def test_while_it_runs_it_cannot_be_set(tenant: Any, manual_engine: ManualEngine) -> None:
    lifecycle.set_timer(asked(tenant, due_at=None))
    manual_engine.start()
    before = read_all_rows()
    with pytest.raises(Conflict):
        lifecycle.set_timer(asked(tenant))
    assert read_all_rows() == before


def test_between_attempts_it_is_canceled_for_a_new_one_with_a_key_of_its_own(
    tenant: Any, manual_engine: ManualEngine
) -> None:
    lifecycle.set_timer(
        asked(tenant, due_at=None, retry_policy=RetryPolicy(max_attempts=2, initial_interval=60))
    )
    manual_engine.finish((manual_engine.start_one(), build_error()))
    lifecycle.set_timer(asked(tenant))
    assert [call.status for call in calls(tenant)] == ["Canceled", "Scheduled"]


def test_once_it_has_ended_its_id_is_free_and_its_history_stays(
    tenant: Any, manual_engine: ManualEngine
) -> None:
    lifecycle.set_timer(asked(tenant, due_at=None))
    manual_engine.finish((manual_engine.start_one(), build_response()))
    lifecycle.set_timer(asked(tenant))
    assert [call.status for call in calls(tenant)] == ["Succeeded", "Scheduled"]


def test_namespaces_and_tenants_do_not_share_ids(tenant: Any, intruder: Any, at_noon: datetime) -> None:
    declare_namespace(tenant.tenant_id, "orders", 4)
    for one in (asked(tenant), asked(tenant, namespace="orders"), asked(intruder)):
        lifecycle.set_timer(one)
    assert (len(calls(tenant)), len(calls(intruder))) == (2, 1)


def test_a_change_is_made_to_what_is_there(tenant: Any, at_noon: datetime) -> None:
    lifecycle.set_timer(asked(tenant))
    (before,) = calls(tenant)

    def later(call: ServiceCall) -> SubmitServiceCall:
        assert call.due_at == after(60)
        return replace(asked(tenant), due_at=after(90))

    lifecycle.change_timer(tenant.tenant_id, "default", "order-1", later)
    assert get_call(tenant, before.service_call_id).due_at == after(90)


def test_what_is_not_there_cannot_be_changed(tenant: Any, intruder: Any, manual_engine: ManualEngine) -> None:
    lifecycle.set_timer(asked(tenant, due_at=None))
    with pytest.raises(NotFound):
        lifecycle.change_timer(intruder.tenant_id, "default", "order-1", lambda call: asked(intruder))
    manual_engine.finish((manual_engine.start_one(), build_response()))
    with pytest.raises(NotFound):
        lifecycle.change_timer(tenant.tenant_id, "default", "order-1", lambda call: asked(tenant))


@pytest.mark.django_db(transaction=True)
def test_of_many_that_set_it_at_the_same_moment_one_call_comes(
    tenant: Any, elsewhere: Callable[..., Future[Any]]
) -> None:
    def set_it(number: int) -> None:
        with pin_time(after(0)):
            lifecycle.set_timer(asked(tenant, due_at=after(number + 1)))

    for future in [elsewhere(set_it, number) for number in range(8)]:
        future.result(30)

    (call,) = calls(tenant)
    timer = find_timer(tenant, call.service_call_id)
    assert timer is not None
    assert timer.due_at == call.due_at
    assert len(list_event_types(tenant, call.service_call_id)) == 9

"""An idempotency key stands for one call of one tenant: the same request returns it, another request is refused."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any
from uuid import UUID

import pytest

from eventservice.kernel.errors import Conflict
from eventservice.kernel.ids import new_id
from orchestration import lifecycle
from orchestration.commands import RequestSpec
from orchestration.lifecycle import Submitted
from orchestration.models import ServiceCall
from orchestration.retries import RetryPolicy
from orchestration.states import Delivery, ResponseContract
from tests.orchestration.support import (
    URL,
    ManualEngine,
    add_to_noon,
    build_command,
    build_response,
    read_all_rows,
    submit,
)

pytestmark = pytest.mark.django_db


def submit_with_key(tenant: Any, **given: Any) -> Submitted:
    return lifecycle.submit([build_command(tenant, idempotency_key="k", **given)])[0]


def test_a_repeated_request_returns_the_first_call(tenant: Any) -> None:
    first = submit_with_key(tenant)
    before = read_all_rows()
    assert submit_with_key(tenant) == Submitted(first.service_call_id, is_repeat=True)
    assert read_all_rows() == before


def test_a_repeated_request_returns_the_first_call_even_if_it_has_ended(
    tenant: Any, manual_engine: ManualEngine
) -> None:
    first = submit_with_key(tenant)
    manual_engine.finish((manual_engine.start_one(), build_response()))
    assert submit_with_key(tenant) == Submitted(first.service_call_id, is_repeat=True)


@pytest.mark.parametrize(
    "other",
    [
        {"name": "other"},
        {"request": RequestSpec("PUT", URL)},
        {"request": RequestSpec("POST", f"{URL}/other")},
        {"request": RequestSpec("POST", URL, {"X": "1"})},
        {"request": RequestSpec("POST", URL, body={})},
        {"due_at": add_to_noon(1)},
        {"tags": frozenset({"t"})},
        {"external_id": "order-1"},
        {"retry_policy": RetryPolicy(max_attempts=2)},
        {"timeout_seconds": 1.0},
        {"response_contract": ResponseContract.CALLBACK},
        {"delivery": Delivery.AT_MOST_ONCE},
        {"service_call_id": UUID(int=1), "id_was_given": True},
    ],
    ids=" ".join,
)
def test_another_request_under_the_same_key_is_a_conflict(tenant: Any, other: dict[str, Any]) -> None:
    submit_with_key(tenant)
    before = read_all_rows()
    with pytest.raises(Conflict) as refused:
        submit_with_key(tenant, **other)
    assert refused.value.code == "idempotency_conflict"
    assert "idempotencyKey" in refused.value.errors
    assert read_all_rows() == before


def test_generated_ids_are_not_part_of_the_request(tenant: Any) -> None:
    first = submit_with_key(tenant, service_call_id=new_id(), correlation_id=new_id())
    assert (
        submit_with_key(tenant, service_call_id=new_id(), correlation_id=new_id()).service_call_id
        == first.service_call_id
    )


def test_a_key_that_occurs_twice_in_a_batch_makes_one_call(tenant: Any) -> None:
    first, second, other = lifecycle.submit(
        [build_command(tenant, idempotency_key=key, name="call") for key in ("k", "k", "l")]
    )
    assert second == Submitted(first.service_call_id, is_repeat=True)
    assert other.service_call_id != first.service_call_id
    assert ServiceCall.objects.for_tenant(tenant.tenant_id).count() == 2


def test_a_key_for_two_different_requests_in_a_batch_stores_nothing(tenant: Any) -> None:
    with pytest.raises(Conflict):
        lifecycle.submit([build_command(tenant, idempotency_key="k", name=name) for name in ("a", "b")])
    assert not ServiceCall.objects.for_tenant(tenant.tenant_id).exists()


def test_two_tenants_may_use_the_same_key_even_in_one_batch(tenant: Any, intruder: Any) -> None:
    theirs = submit_with_key(intruder, name="theirs")
    ours, again = lifecycle.submit(
        [
            build_command(tenant, idempotency_key="k"),
            build_command(intruder, idempotency_key="k", name="theirs"),
        ]
    )
    assert not ours.is_repeat
    assert again == Submitted(theirs.service_call_id, is_repeat=True)


def test_an_empty_key_is_a_key(tenant: Any) -> None:
    first = lifecycle.submit([build_command(tenant, idempotency_key="")])[0]
    assert lifecycle.submit([build_command(tenant, idempotency_key="")]) == [
        Submitted(first.service_call_id, True)
    ]


def test_keys_are_case_sensitive(tenant: Any) -> None:
    first, second = lifecycle.submit([build_command(tenant, idempotency_key=key) for key in ("k", "K")])
    assert not second.is_repeat
    assert first.service_call_id != second.service_call_id


def test_without_a_key_a_repeated_request_makes_two_calls(tenant: Any) -> None:
    assert submit(tenant) != submit(tenant)


@pytest.mark.django_db(transaction=True)
def test_of_many_submissions_at_once_only_one_makes_the_call(
    tenant: Any, elsewhere: Callable[..., Future[Any]]
) -> None:
    results = [future.result(30) for future in [elsewhere(submit_with_key, tenant) for _ in range(8)]]
    assert len({result.service_call_id for result in results}) == 1
    assert [result.is_repeat for result in results].count(False) == 1

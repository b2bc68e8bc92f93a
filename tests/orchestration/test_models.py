"""The constraints of service calls."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from django.db import IntegrityError, transaction

from eventservice.kernel.ids import new_id
from orchestration.models import ServiceCall
from orchestration.states import LIVE, TERMINAL, Delivery, ResponseContract, Status
from tests.factories import ServiceCallFactory, set_status

pytestmark = pytest.mark.django_db

TENANT = uuid.UUID("01900000-0000-7000-8000-00000000000a")


def assert_refused(**values: Any) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        ServiceCallFactory(**{"tenant_id": TENANT, **values})


@pytest.mark.parametrize(
    "bad",
    [
        {"status": "Bogus"},
        {"status": "scheduled"},
        {"status": ""},
        {"delivery": "exactly_once"},
        {"response_contract": "Status"},
        {"name": None},
        {"request_spec": None},
        {"due_at": None},
        {"correlation_id": None},
    ],
    ids=str,
)
def test_a_bad_value_is_refused(bad: dict[str, Any]) -> None:
    assert_refused(**bad)


@pytest.mark.parametrize("status", Status.values)
@pytest.mark.parametrize("delivery", Delivery.values)
@pytest.mark.parametrize("contract", ResponseContract.values)
def test_every_value_of_the_code_is_accepted(status: str, delivery: str, contract: str) -> None:
    ServiceCallFactory(status=status, delivery=delivery, response_contract=contract)


@pytest.mark.parametrize("first", sorted(LIVE))
@pytest.mark.parametrize("second", sorted(LIVE))
def test_an_external_id_is_unique_among_the_live_calls_of_a_namespace(first: Status, second: Status) -> None:
    ServiceCallFactory(tenant_id=TENANT, namespace="orders", external_id="o-1", status=first)
    assert_refused(namespace="orders", external_id="o-1", status=second)


def test_another_namespace_and_another_tenant_have_their_own_external_ids() -> None:
    ServiceCallFactory(tenant_id=TENANT, namespace="orders", external_id="o-1")
    ServiceCallFactory(tenant_id=TENANT, namespace="invoices", external_id="o-1")
    ServiceCallFactory(tenant_id=new_id(), namespace="orders", external_id="o-1")
    ServiceCallFactory(tenant_id=TENANT, namespace="orders", external_id="O-1")
    assert ServiceCall.across_tenants.count() == 4


@pytest.mark.parametrize("status", sorted(TERMINAL))
def test_an_external_id_is_free_again_when_its_call_has_ended(status: Status) -> None:
    call = ServiceCallFactory(tenant_id=TENANT, namespace="orders", external_id="o-1")
    set_status(ServiceCall.objects.for_tenant(TENANT).filter(service_call_id=call.service_call_id), status)

    ServiceCallFactory(tenant_id=TENANT, namespace="orders", external_id="o-1")

    assert ServiceCall.objects.for_tenant(TENANT).filter(external_id="o-1").count() == 2
    assert_refused(namespace="orders", external_id="o-1")


def test_calls_without_an_external_id_do_not_conflict() -> None:
    ServiceCallFactory.create_batch(2, tenant_id=TENANT, external_id=None)


def test_an_idempotency_key_is_unique_in_a_tenant_even_after_its_call_has_ended() -> None:
    ServiceCallFactory(tenant_id=TENANT, idempotency_key="k", status=Status.SUCCEEDED)
    ServiceCallFactory(tenant_id=new_id(), idempotency_key="k")
    ServiceCallFactory(tenant_id=TENANT, idempotency_key="K")
    ServiceCallFactory.create_batch(2, tenant_id=TENANT, idempotency_key=None)
    assert_refused(idempotency_key="k")

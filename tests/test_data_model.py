"""The five domain tables keep tenants apart: keys and references stay inside a tenant, and deletions cascade there."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from django.db import IntegrityError, transaction

from eventservice.kernel.ids import new_id
from outbox.models import WebhookDelivery, WebhookEndpoint
from outbox.publishers.webhook.endpoints import create_endpoint
from tests.factories import (
    EARLIER,
    HttpExecutionFactory,
    OutboxEventFactory,
    ServiceCallFactory,
    ServiceCallTagFactory,
    TimerFactory,
)

pytestmark = pytest.mark.django_db

OF_A_CALL: list[Any] = [ServiceCallTagFactory, TimerFactory, HttpExecutionFactory]
ALL: list[Any] = [ServiceCallFactory, *OF_A_CALL, OutboxEventFactory]
SHARED_ID = uuid.UUID("01900000-0000-7000-8000-000000000001")


def get_table(factory: Any) -> str:
    return str(factory._meta.model._meta.db_table)


def write(factory: Any, tenant_id: uuid.UUID) -> Any:
    """Create a row whose every id but the tenant's is SHARED_ID."""
    if factory is OutboxEventFactory:
        return factory(tenant_id=tenant_id, aggregate_id=SHARED_ID, event_id=SHARED_ID, aggregate_seq=1)
    if factory in OF_A_CALL:
        ServiceCallFactory(tenant_id=tenant_id, service_call_id=SHARED_ID)
    more = {"execution_id": SHARED_ID} if factory is HttpExecutionFactory else {}
    return factory(tenant_id=tenant_id, service_call_id=SHARED_ID, **more)


@pytest.fixture
def two_tenants() -> tuple[uuid.UUID, uuid.UUID]:
    return new_id(), new_id()


@pytest.mark.parametrize("factory", ALL, ids=get_table)
def test_two_tenants_may_hold_the_same_id_and_each_reads_only_its_own(factory: Any, two_tenants: Any) -> None:
    ours, theirs = two_tenants
    write(factory, ours)
    write(factory, theirs)

    model = factory._meta.model
    assert [row.tenant_id for row in model.objects.for_tenant(ours)] == [ours]
    assert [row.tenant_id for row in model.objects.for_tenant(theirs)] == [theirs]
    assert model.across_tenants.count() == 2
    assert not model.objects.for_tenant(new_id()).exists()


@pytest.mark.parametrize("factory", ALL, ids=get_table)
def test_a_deletion_leaves_the_other_tenants_rows(factory: Any, two_tenants: Any) -> None:
    ours, theirs = two_tenants
    write(factory, ours)
    write(factory, theirs)

    model = factory._meta.model
    model.objects.for_tenant(ours).delete()

    assert [row.tenant_id for row in model.across_tenants.all()] == [theirs]


@pytest.mark.parametrize("factory", ALL, ids=get_table)
def test_a_key_is_unique_within_its_tenant(factory: Any, two_tenants: Any) -> None:
    row = write(factory, two_tenants[0])
    again = factory.build(
        **{
            field.attname: getattr(row, field.attname)
            for field in row._meta.local_concrete_fields
            if not field.generated and field.name != "id"
        }
    )
    with pytest.raises(IntegrityError), transaction.atomic():
        again.save(force_insert=True)


@pytest.mark.parametrize("factory", OF_A_CALL, ids=get_table)
def test_a_row_is_deleted_with_its_call(factory: Any, two_tenants: Any) -> None:
    ours, theirs = two_tenants
    write(factory, ours)
    write(factory, theirs)

    ServiceCallFactory._meta.model.objects.for_tenant(ours)._raw_delete("default")

    assert [row.tenant_id for row in factory._meta.model.across_tenants.all()] == [theirs]


@pytest.mark.parametrize("factory", OF_A_CALL, ids=get_table)
def test_the_database_refuses_a_reference_to_another_tenants_call(factory: Any, two_tenants: Any) -> None:
    ours, theirs = two_tenants
    ServiceCallFactory(tenant_id=theirs, service_call_id=SHARED_ID)

    with pytest.raises(IntegrityError), transaction.atomic():
        factory(tenant_id=ours, service_call_id=SHARED_ID)


def test_events_outlive_their_call(two_tenants: Any) -> None:
    write(OutboxEventFactory, two_tenants[0])
    call = write(ServiceCallFactory, two_tenants[0])
    call.delete()
    assert OutboxEventFactory._meta.model.objects.for_tenant(two_tenants[0]).count() == 1


def write_delivery(tenant_id: uuid.UUID) -> WebhookDelivery:
    """Create a delivery, and its endpoint, whose every id but the tenant's is SHARED_ID."""
    create_endpoint(tenant_id, "https://hooks.test/", endpoint_id=SHARED_ID)
    return create_delivery(tenant_id)


def create_delivery(tenant_id: uuid.UUID) -> WebhookDelivery:
    delivery: WebhookDelivery = WebhookDelivery.objects.create(
        tenant_id=tenant_id, delivery_id=SHARED_ID, endpoint_id=SHARED_ID, event_id=SHARED_ID,
        aggregate_id=SHARED_ID, aggregate_seq=1, body="{}", created_at=EARLIER,
    )  # fmt: skip
    return delivery


def test_a_delivery_is_deleted_with_its_endpoint(two_tenants: Any) -> None:
    ours, theirs = two_tenants
    write_delivery(ours)
    write_delivery(theirs)

    WebhookEndpoint.objects.for_tenant(ours)._raw_delete("default")

    assert [row.tenant_id for row in WebhookDelivery.across_tenants.all()] == [theirs]


def test_the_database_refuses_a_delivery_to_another_tenants_endpoint(two_tenants: Any) -> None:
    ours, theirs = two_tenants
    write_delivery(theirs)

    with pytest.raises(IntegrityError), transaction.atomic():
        create_delivery(ours)

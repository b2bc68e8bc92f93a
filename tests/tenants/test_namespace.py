"""A namespace's number of shards is between 1 and 4096, and never changes."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import DataError, IntegrityError, connection, transaction

from eventservice.kernel.errors import Conflict
from eventservice.tenants.models import Namespace, Tenant
from tests.factories import EARLIER, NamespaceFactory

pytestmark = pytest.mark.django_db
LATER = EARLIER + timedelta(days=1)


@pytest.mark.parametrize("number", [0, 4097, -1])
def test_the_database_refuses_too_few_and_too_many_shards(number: int) -> None:
    # MariaDB's column is unsigned: a negative number does not even reach the CHECK.
    with pytest.raises((IntegrityError, DataError)), transaction.atomic():
        NamespaceFactory(num_shards=number)


@pytest.mark.parametrize("number", [1, 4096])
def test_the_minimum_and_the_maximum_are_accepted(number: int) -> None:
    assert NamespaceFactory(num_shards=number).num_shards == number


def test_the_number_of_shards_cannot_be_changed(tenant: Tenant) -> None:
    namespace = NamespaceFactory(tenant=tenant, num_shards=16)
    namespace.num_shards = 32
    with pytest.raises(Conflict, match="fixed at 16") as refusal:
        namespace.save()
    assert refusal.value.code == "immutable"
    assert Namespace.objects.for_tenant(tenant.tenant_id).get().num_shards == 16


def test_the_timer_store_cannot_be_changed(tenant: Tenant) -> None:
    NamespaceFactory(tenant=tenant, store="fleet")
    rows = Namespace.objects.for_tenant(tenant.tenant_id)
    with pytest.raises(IntegrityError, match="cannot be changed"), transaction.atomic():
        rows.update(store="")
    assert rows.get().store == "fleet"
    moved = rows.get()
    moved.store = ""
    with pytest.raises(Conflict, match="stay in the timer store 'fleet'"):
        moved.save()


def test_a_new_object_for_an_existing_row_cannot_change_it(tenant: Tenant) -> None:
    NamespaceFactory(tenant=tenant, name="orders", num_shards=16)
    with pytest.raises(Conflict):
        Namespace(tenant=tenant, name="orders", num_shards=32, created_at=EARLIER).save()
    assert Namespace.objects.for_tenant(tenant.tenant_id).get().num_shards == 16


def test_the_database_refuses_another_number_from_a_queryset_and_from_raw_sql(tenant: Tenant) -> None:
    NamespaceFactory(tenant=tenant, num_shards=16)
    rows = Namespace.objects.for_tenant(tenant.tenant_id)
    with pytest.raises(IntegrityError, match="num_shards cannot be changed"), transaction.atomic():
        rows.update(num_shards=32)
    with (
        pytest.raises(IntegrityError, match="num_shards cannot be changed"),
        transaction.atomic(),
        connection.cursor() as cursor,
    ):
        cursor.execute("UPDATE namespaces SET num_shards = num_shards + 1")
    assert rows.get().num_shards == 16


def test_other_fields_can_be_saved(tenant: Tenant) -> None:
    namespace = NamespaceFactory(tenant=tenant, num_shards=16)
    namespace.save()
    rows = Namespace.objects.for_tenant(tenant.tenant_id)
    assert rows.update(created_at=LATER, num_shards=16) == 1
    assert rows.get().created_at == LATER


def test_two_tenants_each_have_a_namespace_of_the_same_name(tenant: Tenant, intruder: Tenant) -> None:
    NamespaceFactory(tenant=tenant, name="orders", num_shards=1)
    NamespaceFactory(tenant=intruder, name="orders", num_shards=2)

    def read_num_shards(of: Tenant) -> list[Any]:
        return list(Namespace.objects.for_tenant(of.tenant_id).values_list("num_shards", flat=True))

    assert (read_num_shards(tenant), read_num_shards(intruder)) == ([1], [2])


def test_a_tenant_has_a_namespace_once(tenant: Tenant) -> None:
    NamespaceFactory(tenant=tenant, name="orders")
    with pytest.raises(IntegrityError), transaction.atomic():
        NamespaceFactory(tenant=tenant, name="orders")

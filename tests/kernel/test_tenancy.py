"""Reads begin with a tenant or name `across_tenants`, which Django's own machinery uses."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import StringIO
from typing import Any

import pytest
from django import forms
from django.apps import apps
from django.core.management import call_command

from eventservice.kernel.ids import new_id
from eventservice.kernel.tenancy import TenantScopedModel, UnscopedReadError
from eventservice.tenants.models import ApiKey, Namespace, Tenant
from orchestration.models import ServiceCall, ServiceCallTag
from tests.factories import NamespaceFactory, ServiceCallFactory, ServiceCallTagFactory, TenantFactory

pytestmark = pytest.mark.django_db

MODELS = [model for model in apps.get_models() if issubclass(model, TenantScopedModel)]


@pytest.mark.parametrize(
    "read",
    [
        lambda rows: rows.all(),
        lambda rows: rows.filter(status="Failed"),
        lambda rows: rows.exclude(status="Failed"),
        lambda rows: rows.get(status="Failed"),
        lambda rows: rows.get_or_create(status="Failed"),
        lambda rows: rows.count(),
        lambda rows: rows.exists(),
        lambda rows: rows.first(),
        lambda rows: rows.values_list("pk"),
        lambda rows: rows.update(status="Failed"),
        lambda rows: rows.select_for_update(),
        lambda rows: rows.using("default"),
        lambda rows: rows.raw("SELECT * FROM service_calls"),
    ],
)
def test_a_query_that_begins_without_a_tenant_is_refused(read: Callable[[Any], Any]) -> None:
    with pytest.raises(UnscopedReadError, match=r"begin with ServiceCall\.objects\.for_tenant\(tenant_id\)"):
        read(ServiceCall.objects)


def test_a_missing_tenant_is_no_tenant(tenant: Tenant) -> None:
    # An operator's key belongs to no tenant: `tenant_id IS NULL` would find it.
    missing: Any = None
    with pytest.raises(UnscopedReadError):
        ApiKey.objects.for_tenant(missing)


def test_rows_are_read_for_one_tenant_or_across_tenants() -> None:
    ours, theirs = new_id(), new_id()
    ServiceCallFactory(tenant_id=ours)
    ServiceCallFactory(tenant_id=theirs)

    assert [call.tenant_id for call in ServiceCall.objects.for_tenant(ours)] == [ours]
    assert {call.tenant_id for call in ServiceCall.across_tenants.all()} == {ours, theirs}


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_django_reads_through_the_manager_that_sees_all_tenants(model: type[TenantScopedModel]) -> None:
    assert model._default_manager is model.across_tenants
    model._base_manager.exists()  # saves, deletions and lookups of foreign keys


def test_new_rows_are_created_through_objects(tenant: Tenant) -> None:
    fields: Any = {"secret_hash": "0", "created_at": tenant.created_at, "tenant": tenant}
    ApiKey.objects.create(key_id="a", **fields)
    ApiKey.objects.bulk_create([ApiKey(key_id="b", **fields), ApiKey(key_id="c", **fields)], batch_size=1)
    ApiKey.objects.bulk_create([ApiKey(key_id="c", **fields)], ignore_conflicts=True)

    assert sorted(key.key_id for key in ApiKey.objects.for_tenant(tenant.pk)) == ["a", "b", "c"]


def test_a_form_finds_that_a_name_is_taken(tenant: Tenant) -> None:
    form_class = forms.modelform_factory(
        ApiKey, fields=["key_id", "name", "secret_hash", "created_at", "scopes"]
    )
    ApiKey.objects.create(key_id="taken", tenant=tenant, secret_hash="0", created_at=tenant.created_at)

    form = form_class({"key_id": "taken", "secret_hash": "0", "created_at": "2026-01-01", "scopes": "[]"})

    assert "key_id" in form.errors


def test_related_rows_are_read_from_either_side(tenant: Tenant) -> None:
    NamespaceFactory(tenant=tenant, name="nightly")
    call = ServiceCallFactory(tenant_id=tenant.pk)
    tag = ServiceCallTagFactory(tenant_id=tenant.pk, service_call_id=call.service_call_id, tag="payments")

    assert tenant.namespace_set.filter(name="nightly").exists()
    assert [one.tag for one in call.tags.all()] == ["payments"]
    assert ServiceCallTag.objects.for_tenant(tenant.pk).get(pk=tag.pk).service_call == call
    tag.refresh_from_db()


def test_rows_are_deleted_with_their_tenant() -> None:
    ours, theirs = TenantFactory(), TenantFactory()
    NamespaceFactory(tenant=ours, name="nightly")
    kept = NamespaceFactory(tenant=theirs, name="nightly")

    ours.delete()

    assert list(Namespace.across_tenants.filter(name="nightly")) == [kept]


def test_dumpdata_writes_the_rows_of_all_tenants() -> None:
    names = {NamespaceFactory(tenant=TenantFactory(), name=name).name for name in ("day", "night")}

    dumped = StringIO()
    call_command("dumpdata", "tenants.namespace", stdout=dumped)

    assert names <= {row["fields"]["name"] for row in json.loads(dumped.getvalue())}

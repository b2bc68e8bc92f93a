"""Rows whose keys have several columns are listed, shown, linked and deleted like others."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib import admin as django_admin
from django.contrib.admin.models import LogEntry
from django.test import Client

from eventservice.adminsite.composite_pk import format_key, parse_key
from eventservice.kernel.ids import new_id
from eventservice.tenants.models import Namespace, Tenant
from orchestration.models import CallRollup, ServiceCall, ServiceCallTag
from outbox.models import WebhookDelivery, WebhookEndpoint
from tests.console.admin_pages import build_list_url, build_page_url, read_page, read_rows
from tests.factories import (
    EARLIER,
    HttpExecutionFactory,
    NamespaceFactory,
    ServiceCallFactory,
    ServiceCallTagFactory,
    TimerFactory,
)

CALL = "orchestration_servicecall"


@pytest.fixture
def rows(tenant: Tenant) -> dict[str, Any]:
    """One of each kind of key."""
    call = ServiceCallFactory(tenant_id=tenant.pk, name="nightly")
    of_call = {"tenant_id": tenant.pk, "service_call_id": call.service_call_id}
    endpoint = WebhookEndpoint.objects.create(
        tenant_id=tenant.pk, endpoint_id=new_id(), url="http://hooks.test/", secret="enc", created_at=EARLIER
    )
    late = (field.name for field in CallRollup._meta.fields if field.name.startswith("late_"))
    counts: Any = dict.fromkeys(late, 0)
    return {
        CALL: call,
        "orchestration_servicecalltag": ServiceCallTagFactory(**of_call, tag='50%_2F a/b~c"?#'),
        "timers_timerschedule": TimerFactory(**of_call),
        "execution_httpexecution": HttpExecutionFactory(**of_call),
        "tenants_namespace": NamespaceFactory(tenant=tenant, name="day.night_1"),
        "outbox_webhookendpoint": endpoint,
        "outbox_webhookdelivery": WebhookDelivery.objects.create(
            tenant_id=tenant.pk, delivery_id=new_id(), endpoint_id=endpoint.endpoint_id, event_id=new_id(),
            aggregate_id=call.service_call_id, aggregate_seq=1, body="{}", created_at=EARLIER,
        ),
        "orchestration_callrollup": CallRollup.objects.create(
            tenant_id=tenant.pk, resolution="hour", starts_at=EARLIER, succeeded=3, failed=0, canceled=0,
            is_open=False, counted_at=EARLIER, **counts,
        ),
    }  # fmt: skip


def test_each_row_of_a_list_links_to_its_page(viewer: Client, rows: dict[str, Any]) -> None:
    for model, row in rows.items():
        page = read_page(viewer.get(build_list_url(model)))
        assert f'href="{build_page_url(model, row)}' in page.replace("&amp;", "&"), model


def test_each_row_has_a_page_and_a_history(viewer: Client, rows: dict[str, Any]) -> None:
    for model, row in rows.items():
        page = read_page(viewer.get(build_page_url(model, row)))
        assert build_page_url(model, row, "history") in page, model
        assert str(row) in read_page(viewer.get(build_page_url(model, row, "history"))), model


def test_a_formatted_key_is_parsed_as_the_same_key(rows: dict[str, Any]) -> None:
    for row in rows.values():
        assert tuple((parse_key(type(row), format_key(row)) or {}).values()) == tuple(row.pk)


@pytest.mark.parametrize("text", ["", "x", "~", "a~b", "a~b~c~d", "1", "%00", "\x00~\x00", "None~None"])
def test_an_invalid_key_finds_nothing(text: str, viewer: Client) -> None:
    for model in (ServiceCall, ServiceCallTag, Namespace):
        made = django_admin.site.get_model_admin(model)
        assert made.get_object(viewer.get("/admin/").wsgi_request, text) is None
    response = viewer.get(build_page_url(CALL, Unknown(text)), follow=True)
    assert response.status_code in (200, 404)


class Unknown:
    def __init__(self, text: str) -> None:
        self.pk = text or "nothing"


def test_another_tenants_call_of_the_same_id_is_another_call(
    viewer: Client, tenant: Tenant, intruder: Tenant
) -> None:
    ours = ServiceCallFactory(tenant_id=tenant.pk, name="ours")
    theirs = ServiceCallFactory(tenant_id=intruder.pk, service_call_id=ours.service_call_id, name="theirs")
    assert "theirs" not in read_page(viewer.get(build_page_url(CALL, ours)))
    assert "theirs" in read_page(viewer.get(build_page_url(CALL, theirs)))


def test_the_link_to_a_row_keeps_the_filters_of_the_list(viewer: Client, rows: dict[str, Any]) -> None:
    page = read_page(viewer.get(build_list_url(CALL, status="Scheduled")))
    assert f"{build_page_url(CALL, rows[CALL])}?_changelist_filters=status%3DScheduled" in page


def test_an_endpoint_is_deleted_with_its_deliveries_and_recorded(admin: Client, rows: dict[str, Any]) -> None:
    model, used = "outbox_webhookendpoint", rows["outbox_webhookendpoint"]
    address = build_page_url(model, used, "delete")
    assert admin.get(address).status_code == 200
    assert admin.post(address, {"post": "yes"}).status_code == 302
    assert not WebhookEndpoint.objects.for_tenant(used.tenant_id).exists()
    assert not WebhookDelivery.objects.for_tenant(used.tenant_id).exists()
    assert LogEntry.objects.get().object_id == format_key(used)


def test_a_namespace_is_created_and_has_a_history(admin: Client, tenant: Tenant) -> None:
    given = {"tenant": tenant.pk, "name": "reports", "num_shards": "8"}
    assert admin.post("/admin/tenants/namespace/add/", given).status_code == 302
    made = Namespace.objects.for_tenant(tenant.pk).get(name="reports")
    assert made.num_shards == 8
    assert LogEntry.objects.get().object_id == format_key(made)
    history = read_page(admin.get(build_page_url("tenants_namespace", made, "history")))
    assert "namespace-create" in history
    assert "Added" in history
    assert read_rows(admin.get(build_list_url("tenants_namespace")))

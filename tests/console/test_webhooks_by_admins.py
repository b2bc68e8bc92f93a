"""Admins create, disable and delete webhook endpoints; the secret of a new one is shown once."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.sessions.models import Session
from django.test import Client

from eventservice.kernel.ids import new_id
from eventservice.kernel.secrets import decrypt
from eventservice.operators.models import OperatorAction
from eventservice.tenants.directory import update_tenant
from eventservice.tenants.models import Tenant
from outbox.models import WebhookDelivery, WebhookEndpoint
from outbox.publishers.webhook.endpoints import create_endpoint
from outbox.publishers.webhook.publisher import WebhookPublisher
from tests.console.admin_pages import build_page_url
from tests.outbox.support import build_dispatcher, drain, store_run

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]

NEW = "/webhooks/new/"
URL = "https://hooks.example/in?token=hush"


@pytest.fixture
def endpoint(tenant: Tenant) -> WebhookEndpoint:
    return create_endpoint(tenant.tenant_id, URL)[0]


def build_url(endpoint: WebhookEndpoint, action: str) -> str:
    return f"/webhooks/{endpoint.tenant_id}/{endpoint.endpoint_id}/{action}/"


def list_endpoints(tenant: Tenant) -> list[WebhookEndpoint]:
    return list(WebhookEndpoint.objects.for_tenant(tenant.tenant_id))


def list_audit_entries() -> list[OperatorAction]:
    return list(OperatorAction.across_tenants.order_by("id"))


def fill_form(of: Tenant, **given: Any) -> dict[str, Any]:
    return {"tenant": str(of.tenant_id), "url": URL, **given}


def test_a_new_secret_is_in_the_response_to_the_form_and_nowhere_else(admin: Client, tenant: Tenant) -> None:
    response = admin.post(NEW, fill_form(tenant, eventTypes=["ServiceCallFailed"]))
    (endpoint,) = list_endpoints(tenant)
    match = re.search(r"whsec_[A-Za-z0-9+/]+=*", response.content.decode())
    assert match
    secret = match[0]
    assert decrypt(endpoint.secret) == secret
    assert (endpoint.url, endpoint.event_types) == (URL, ["ServiceCallFailed"])
    assert (response.status_code, response["Cache-Control"]) == (201, "no-store")
    assert secret not in admin.get("/webhooks/").content.decode()
    assert secret not in str([session.get_decoded() for session in Session.objects.all()])
    (note,) = list_audit_entries()
    assert (note.action, note.subject, note.tenant_id) == (
        "endpoint-create", str(endpoint.endpoint_id), tenant.tenant_id,
    )  # fmt: skip
    assert secret not in str(note.detail)
    assert "hush" not in str(note.detail)


@pytest.mark.parametrize(
    ("wrong", "field", "rule"),
    [
        ({"tenant": ""}, "tenant", "is required"),
        ({"tenant": "acme"}, "tenant", "must be a UUID"),
        ({"url": ""}, "url", "must not be empty"),
        ({"url": "nonsense"}, "url", "does not have the form"),
        ({"url": "http://169.254.169.254/"}, "url", "cloud metadata"),
        ({"eventTypes": ["Everything"]}, "eventTypes", "must be one of"),
    ],
)
def test_each_error_is_at_its_field(
    admin: Client, tenant: Tenant, wrong: dict[str, Any], field: str, rule: str
) -> None:
    response = admin.post(NEW, fill_form(tenant, **wrong))
    assert response.status_code == 400
    errors = {item.html_name: item.errors for item in response.context["form"] if item.errors}
    assert set(errors) == {field}
    assert rule in "; ".join(errors[field])
    assert list_endpoints(tenant) == []
    assert list_audit_entries() == []


def test_an_unknown_tenant_gets_no_endpoint(admin: Client) -> None:
    assert admin.post(NEW, {"tenant": str(new_id()), "url": URL}).status_code == 404


def test_the_form_selects_the_tenant_of_the_list(admin: Client, tenant: Tenant) -> None:
    page = admin.get(f"/webhooks/?tenant={tenant.tenant_id}").content.decode()
    address = f"{NEW}?tenant={tenant.tenant_id}"
    assert address in page
    assert f'value="{tenant.tenant_id}" selected' in admin.get(address).content.decode()


def test_an_empty_list_says_how_to_create_an_endpoint(admin: Client, operator: Client) -> None:
    assert NEW in admin.get("/webhooks/").content.decode()
    page = operator.get("/webhooks/").content.decode()
    assert "manage.py webhook add" in page
    assert NEW not in page


def test_disabling_is_confirmed(admin: Client, endpoint: WebhookEndpoint) -> None:
    question = admin.get(build_url(endpoint, "disable")).content.decode()
    assert "hush" not in question
    admin.post(build_url(endpoint, "disable"))
    endpoint.refresh_from_db()
    assert (endpoint.active, endpoint.disabled_reason) == (False, "an operator has disabled it")
    response = admin.post(build_url(endpoint, "disable"), follow=True)
    assert "not active any more" in response.content.decode()
    assert [note.action for note in list_audit_entries()] == ["endpoint-disable"]


def test_pending_deliveries_are_sent_when_the_endpoint_is_enabled_again(
    admin: Client, endpoint: WebhookEndpoint
) -> None:
    store_run(new_id(), 1, tenant_id=endpoint.tenant_id)
    drain(build_dispatcher(WebhookPublisher()))
    for action in ("disable", "enable"):
        admin.post(build_url(endpoint, action))
    ((queue, *_),) = admin.get("/webhooks/").context["rows"]
    assert (queue.endpoint.active, queue.pending) == (True, 1)


def test_deleting_is_confirmed(admin: Client, endpoint: WebhookEndpoint, tenant: Tenant) -> None:
    assert admin.get(build_url(endpoint, "delete")).status_code == 200
    admin.post(build_url(endpoint, "delete"))
    assert list_endpoints(tenant) == []
    assert [note.action for note in list_audit_entries()] == ["endpoint-delete"]


def test_a_used_endpoint_is_deleted_with_its_deliveries_once_the_word_is_typed(
    admin: Client, endpoint: WebhookEndpoint, tenant: Tenant
) -> None:
    store_run(new_id(), 1, tenant_id=endpoint.tenant_id)
    drain(build_dispatcher(WebhookPublisher()))
    question = admin.get(build_url(endpoint, "delete"), headers={"Accept": "text/html"})
    assert "1 pending delivery will never be sent" in question.content.decode()
    admin.post(build_url(endpoint, "delete"))
    assert list_endpoints(tenant) == [endpoint]
    assert list_audit_entries() == []
    response = admin.post(build_url(endpoint, "delete"), {"word": "delete"})
    assert response["Location"] == "/webhooks/"
    assert list_endpoints(tenant) == []
    assert not WebhookDelivery.objects.for_tenant(tenant.tenant_id).exists()
    assert [note.action for note in list_audit_entries()] == ["endpoint-delete"]


@pytest.mark.parametrize("action", ["enable", "disable", "delete"])
def test_an_operator_is_refused(
    operator: Client, endpoint: WebhookEndpoint, tenant: Tenant, action: str
) -> None:
    assert operator.post(build_url(endpoint, action)).status_code == 403
    assert [one.active for one in list_endpoints(tenant)] == [True]
    page = operator.get(f"/webhooks/{endpoint.tenant_id}/{endpoint.endpoint_id}/").content.decode()
    assert build_url(endpoint, action) not in page


def test_an_operator_may_resend_and_not_create(
    operator: Client, endpoint: WebhookEndpoint, tenant: Tenant
) -> None:
    assert operator.get(NEW).status_code == operator.post(NEW, fill_form(tenant)).status_code == 403
    assert operator.post(build_url(endpoint, "resend")).status_code == 303


def test_the_admin_refuses_the_same_urls(admin: Client, endpoint: WebhookEndpoint, tenant: Tenant) -> None:
    given = {"url": "http://169.254.169.254/", "event_types": "", "active": "on"}
    response = admin.post(build_page_url("outbox_webhookendpoint", endpoint), given)
    assert "cloud metadata" in response.content.decode()
    assert [one.url for one in list_endpoints(tenant)] == [URL]


def test_an_endpoint_at_a_host_that_the_tenant_may_not_call_is_refused(admin: Client, tenant: Tenant) -> None:
    update_tenant(tenant.tenant_id, allowed_hosts=["fine.example"])
    refused = admin.post(NEW, fill_form(tenant), HTTP_ACCEPT="text/html")
    assert refused.status_code == 400
    assert "allowed hosts: fine.example" in refused.content.decode()
    assert not list_endpoints(tenant)
    assert admin.post(NEW, fill_form(tenant, url="https://fine.example/in")).status_code == 201


def test_the_admin_site_refuses_a_change_to_such_a_host(
    admin: Client, tenant: Tenant, endpoint: WebhookEndpoint
) -> None:
    update_tenant(tenant.tenant_id, allowed_hosts=["hooks.example"])
    page = build_page_url("outbox_webhookendpoint", endpoint)
    for url, stored in (
        ("https://evil.example/", URL),
        ("https://hooks.example/2", "https://hooks.example/2"),
    ):
        response = admin.post(page, {"url": url, "event_types": "", "active": "on"})
        endpoint.refresh_from_db()
        assert endpoint.url == stored
        assert ("allowed hosts" in response.content.decode()) is (stored == URL)

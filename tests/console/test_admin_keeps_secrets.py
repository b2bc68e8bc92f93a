"""The admin shows no secret, and escapes all text from outside."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from eventservice.adminsite.columns import MAX_SHOWN, mask_secrets
from eventservice.kernel.ids import new_id
from eventservice.kernel.secrets import encrypt
from eventservice.tenants.directory import declare_namespace
from eventservice.tenants.keys import create_key
from eventservice.tenants.models import Tenant
from execution.redaction import MASK
from orchestration import lifecycle
from orchestration.commands import RequestSpec, SubmitServiceCall
from orchestration.models import ServiceCall
from outbox.models import OutboxEvent, WebhookEndpoint
from tests.console.admin_pages import build_list_url, build_page_url, read_page
from tests.factories import EARLIER, HttpExecutionFactory

CANARY = "canary-0451"


@pytest.fixture
def call(tenant: Tenant) -> Any:
    declare_namespace(tenant.pk, "default", 1)
    headers = {"Authorization": f"Bearer {CANARY}", "X-Plain": "in the clear"}
    request = RequestSpec("POST", "http://example.test/", headers, {"hello": "body"})
    lifecycle.submit([SubmitServiceCall(tenant_id=tenant.pk, name="call", request=request)])
    return ServiceCall.objects.for_tenant(tenant.pk).get()


def read_encrypted_header(call: Any) -> str:
    return str(call.request_spec["headers"]["Authorization"]["encrypted"])


def test_an_encrypted_header_is_shown_nowhere(admin: Client, call: Any) -> None:
    attempt = HttpExecutionFactory(
        tenant_id=call.tenant_id, service_call_id=call.service_call_id, request_headers=call.request_spec["headers"]
    )  # fmt: skip
    events = OutboxEvent.objects.for_tenant(call.tenant_id)
    pages = [
        build_list_url("orchestration_servicecall"),
        build_list_url("orchestration_servicecall", q=call.service_call_id),
        build_page_url("orchestration_servicecall", call),
        build_page_url("orchestration_servicecall", call, "history"),
        build_page_url("execution_httpexecution", attempt),
        *(build_page_url("outbox_outboxevent", event) for event in events),
    ]
    for page in pages:
        text = read_page(admin.get(page))
        assert CANARY not in text, page
        assert read_encrypted_header(call) not in text, page
    text = read_page(admin.get(pages[2]))
    assert f'"Authorization": "{MASK}"' in text
    assert '"X-Plain": "in the clear"' in text
    assert '"hello": "body"' in text


def test_encrypted_values_are_masked_wherever_they_occur() -> None:
    sealed = encrypt(CANARY)
    value = {"deep": [{"encrypted": sealed}, sealed, "plain"], "n": 1}
    assert mask_secrets(value) == {"deep": [MASK, MASK, "plain"], "n": 1}


def test_hashes_of_keys_and_secrets_of_endpoints_are_shown_nowhere(admin: Client, tenant: Tenant) -> None:
    key, text = create_key(tenant.pk, ["read"])
    endpoint = WebhookEndpoint.objects.create(
        tenant_id=tenant.pk, endpoint_id=new_id(), url="http://h.test/", secret=encrypt(CANARY), created_at=EARLIER
    )  # fmt: skip
    for model, row, secret in (
        ("tenants_apikey", key, key.secret_hash),
        ("outbox_webhookendpoint", endpoint, endpoint.secret),
    ):
        for page in (
            build_list_url(model),
            build_page_url(model, row),
            build_page_url(model, row, "history"),
        ):
            assert secret not in read_page(admin.get(page))
            assert text.split("_")[-1] not in read_page(admin.get(page))


def test_the_url_of_an_endpoint_is_masked_for_users_who_may_not_change_it(
    viewer: Client, admin: Client, tenant: Tenant
) -> None:
    endpoint = WebhookEndpoint.objects.create(
        tenant_id=tenant.pk, endpoint_id=new_id(), url=f"http://h.test/?token={CANARY}", secret="", created_at=EARLIER
    )  # fmt: skip
    page = build_page_url("outbox_webhookendpoint", endpoint)
    assert CANARY in read_page(admin.get(page))
    for path in (
        page,
        build_list_url("outbox_webhookendpoint"),
        build_page_url("outbox_webhookendpoint", endpoint, "history"),
    ):
        assert CANARY not in read_page(viewer.get(path))


def test_a_response_is_escaped_and_truncated(viewer: Client, call: Any) -> None:
    attempt = HttpExecutionFactory(
        tenant_id=call.tenant_id, service_call_id=call.service_call_id, response_status=200,
        response_body="<script>alert(1)</script>" + "x" * MAX_SHOWN + "THE END",
    )  # fmt: skip
    page = viewer.get(build_page_url("execution_httpexecution", attempt)).content.decode()
    assert "&lt;script&gt;alert(1)" in page
    assert "<script>alert" not in page
    assert "THE END" not in page
    assert f"The first {MAX_SHOWN:,} characters of 19.6 KiB." in page


@pytest.mark.parametrize(
    "path", ["/admin/", "/admin/orchestration/servicecall/", "/admin/tenants/tenant/add/"]
)
def test_no_page_has_inline_scripts_or_styles(path: str, admin: Client, call: Any) -> None:
    page = read_page(admin.get(path))
    assert "<style" not in page
    assert " style=" not in page
    assert " onclick=" not in page
    assert all("src=" in tag for tag in page.split("<script")[1:] if 'type="application/json"' not in tag)

"""The page of a webhook endpoint with its deliveries, the page of a delivery, and test events."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from eventservice.console import webhooks
from eventservice.kernel.ids import new_id
from eventservice.operators.models import OperatorAction
from eventservice.tenants.models import Tenant
from outbox.models import WebhookDelivery, WebhookEndpoint
from outbox.publishers.webhook.delivery_queue import WebhookResult, claim_deliveries, record_results
from outbox.publishers.webhook.endpoints import create_endpoint, set_endpoint_active
from outbox.publishers.webhook.publisher import WebhookPublisher
from tests.outbox.support import build_dispatcher, drain, store_run

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]


@pytest.fixture
def endpoint(tenant: Tenant) -> WebhookEndpoint:
    return create_endpoint(tenant.tenant_id, "https://hooks.example/in?token=hush")[0]


def build_url(endpoint: WebhookEndpoint, rest: str = "") -> str:
    return f"/webhooks/{endpoint.tenant_id}/{endpoint.endpoint_id}/{rest}"


def publish(endpoint: WebhookEndpoint, calls: int = 1) -> None:
    for _ in range(calls):
        store_run(new_id(), 1, tenant_id=endpoint.tenant_id)
    drain(build_dispatcher(WebhookPublisher()))


def respond(endpoint: WebhookEndpoint, *responses: tuple[int | None, str]) -> None:
    due, _ = claim_deliveries(endpoint, len(responses))
    results = [
        WebhookResult(delivery, status, "" if status else text, text if status else "")
        for delivery, (status, text) in zip(due, responses, strict=True)
    ]
    record_results(endpoint, results)


def get_page(client: Client, path: str, status: int = 200) -> str:
    response = client.get(path, HTTP_ACCEPT="text/html")
    assert response.status_code == status, response.content.decode()[:2000]
    return " ".join(response.content.decode().split())


def test_an_endpoint_without_deliveries_says_what_to_do(
    viewer: Client, operator: Client, endpoint: WebhookEndpoint
) -> None:
    page = get_page(operator, build_url(endpoint))
    assert "No deliveries yet" in page
    assert "Send test event </button>" in page
    assert "hush" not in page
    assert "Send test event </button>" not in get_page(viewer, build_url(endpoint))


def test_deliveries_show_state_attempts_and_response(viewer: Client, endpoint: WebhookEndpoint) -> None:
    publish(endpoint, 4)
    respond(endpoint, (204, ""), (500, "out of order"), (None, "Connect: refused"))
    page = get_page(viewer, build_url(endpoint))
    for text in ("HTTP 204", "HTTP 500", "Connect: refused", "delivered", "retrying", "pending"):
        assert text in page
    rows = viewer.get(build_url(endpoint) + "?show=pending").context["rows"]
    assert sorted(row["word"] for row in rows) == ["pending", "retrying", "retrying"]
    assert [row["word"] for row in viewer.get(build_url(endpoint) + "?show=delivered").context["rows"]] == [
        "delivered"
    ]
    assert "No failed deliveries" in get_page(viewer, build_url(endpoint) + "?show=failed")


def test_a_delivery_shows_the_request_and_the_response(viewer: Client, endpoint: WebhookEndpoint) -> None:
    publish(endpoint)
    respond(endpoint, (500, "<b>out of order</b>"))
    delivery = WebhookDelivery.objects.for_tenant(endpoint.tenant_id).get()
    page = get_page(viewer, build_url(endpoint, f"deliveries/{delivery.delivery_id}/"))
    assert "HTTP 500" in page
    assert "&lt;b&gt;out of order&lt;/b&gt;" in page
    assert "1 of at most 36" in page
    assert "&quot;specversion&quot;: &quot;1.0&quot;" in page
    assert 'href="/events/' in page


def test_pages_follow_each_other(
    viewer: Client, endpoint: WebhookEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "DELIVERIES_PER_PAGE", 2)
    publish(endpoint, 5)
    seen: list[Any] = []
    address = build_url(endpoint)
    context: Any = {}
    for _ in range(3):
        context = viewer.get(address).context
        seen += [row["delivery"].delivery_id for row in context["rows"]]
        address = f"{build_url(endpoint)}?cursor={context['page'].cursor}"
    assert context["page"].cursor is None
    assert len(set(seen)) == 5
    assert seen == sorted(seen, reverse=True)


def test_a_test_event_is_queued_and_recorded(
    operator: Client, viewer: Client, endpoint: WebhookEndpoint
) -> None:
    assert viewer.post(build_url(endpoint, "test/")).status_code == 403
    response = operator.post(build_url(endpoint, "test/"))
    delivery = WebhookDelivery.objects.for_tenant(endpoint.tenant_id).get()
    assert response["Location"] == build_url(endpoint, f"deliveries/{delivery.delivery_id}/")
    assert "WebhookTest" in get_page(operator, response["Location"])
    assert [note.action for note in OperatorAction.across_tenants.all()] == ["endpoint-test"]


def test_a_disabled_endpoint_says_why_and_gets_no_test_event(
    admin: Client, endpoint: WebhookEndpoint
) -> None:
    set_endpoint_active(endpoint.tenant_id, endpoint.endpoint_id, active=False)
    page = get_page(admin, build_url(endpoint))
    assert "Nothing is sent to this endpoint: an operator has disabled it." in page
    response = admin.post(build_url(endpoint, "test/"), headers={"Referer": build_url(endpoint)}, follow=True)
    assert "Enable it first." in response.content.decode()
    assert not WebhookDelivery.across_tenants.exists()


@pytest.mark.parametrize("query", ["show=x", "cursor=x"])
def test_invalid_parameters_are_reported(viewer: Client, endpoint: WebhookEndpoint, query: str) -> None:
    get_page(viewer, f"{build_url(endpoint)}?{query}", status=400)


def test_nothing_is_found_under_another_tenant_or_endpoint(
    viewer: Client, endpoint: WebhookEndpoint, intruder: Tenant
) -> None:
    publish(endpoint)
    other, _ = create_endpoint(endpoint.tenant_id, "https://other.example/")
    delivery = WebhookDelivery.objects.for_tenant(endpoint.tenant_id).get()
    get_page(viewer, f"/webhooks/{intruder.tenant_id}/{endpoint.endpoint_id}/", status=404)
    get_page(viewer, build_url(other, f"deliveries/{delivery.delivery_id}/"), status=404)
    get_page(viewer, build_url(endpoint, f"deliveries/{new_id()}/"), status=404)

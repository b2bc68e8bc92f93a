"""Webhook endpoints: which are disabled and why, what has failed, and enabling them again."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from django.test import Client

from eventservice.kernel.ids import new_id
from eventservice.operators.models import OperatorAction
from eventservice.tenants.models import Tenant
from outbox.models import DeliveryState, WebhookDelivery, WebhookEndpoint
from outbox.publishers.webhook.delivery_queue import (
    WebhookResult,
    claim_deliveries,
    give_up_gone_endpoint,
    record_results,
)
from outbox.publishers.webhook.endpoints import create_endpoint
from outbox.publishers.webhook.publisher import WebhookPublisher
from tests.outbox.support import build_dispatcher, drain, store_run

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]


@pytest.fixture
def endpoint(tenant: Tenant) -> WebhookEndpoint:
    return create_endpoint(tenant.tenant_id, "https://hooks.example/in?token=hush")[0]


@pytest.fixture
def gone(endpoint: WebhookEndpoint) -> WebhookEndpoint:
    """It had three events of a call coming, and answered 410 to the first."""
    store_run(new_id(), 3, tenant_id=endpoint.tenant_id)
    drain(build_dispatcher(WebhookPublisher()))
    answer(endpoint, 410)
    give_up_gone_endpoint(10)
    endpoint.refresh_from_db()
    return endpoint


def answer(endpoint: WebhookEndpoint, status: int) -> int:
    due, _ = claim_deliveries(endpoint, 10)
    record_results(endpoint, [WebhookResult(delivery, status) for delivery in due])
    return len(due)


def states(endpoint: WebhookEndpoint) -> list[str]:
    deliveries = WebhookDelivery.objects.for_tenant(endpoint.tenant_id).order_by("aggregate_seq")
    return list(deliveries.values_list("state", flat=True))


def path(endpoint: WebhookEndpoint, action: str) -> str:
    return f"/webhooks/{endpoint.tenant_id}/{endpoint.endpoint_id}/{action}/"


def test_an_empty_list_says_what_endpoints_are_for(viewer: Client) -> None:
    assert "No webhook endpoint" in viewer.get("/webhooks/").content.decode()


def test_endpoints_are_listed_with_pending_deliveries_and_why_they_are_disabled(
    viewer: Client, gone: WebhookEndpoint, intruder: Tenant
) -> None:
    page = viewer.get("/webhooks/")
    ((queue, tenant, url),) = page.context["rows"]
    assert (queue.pending, queue.exhausted, tenant) == (0, 3, "acme")
    assert url == "https://hooks.example/in?…"
    assert "410 Gone" in page.content.decode()
    assert "hush" not in page.content.decode()
    assert viewer.get(f"/webhooks/?tenant={intruder.tenant_id}").context["rows"] == []


def test_an_endpoint_is_enabled_and_failed_deliveries_are_resent_in_order(
    admin: Client, operator: Client, gone: WebhookEndpoint
) -> None:
    admin.post(path(gone, "enable"))
    gone.refresh_from_db()
    assert (gone.active, gone.disabled_reason) == (True, "")
    operator.post(path(gone, "resend"))
    assert states(gone) == [DeliveryState.PENDING] * 3
    assert [answer(gone, 200) for _ in range(4)] == [1, 1, 1, 0]
    assert states(gone) == [DeliveryState.DELIVERED] * 3
    noted = OperatorAction.across_tenants.order_by("id")
    assert [note.action for note in noted] == ["endpoint-enable", "endpoint-resend"]
    assert "hush" not in str([note.detail for note in noted])


def test_resent_deliveries_do_not_overtake_pending_ones(
    operator: Client, endpoint: WebhookEndpoint, at_noon: datetime
) -> None:
    call = new_id()
    store_run(call, 2, tenant_id=endpoint.tenant_id)
    drain(build_dispatcher(WebhookPublisher()))
    first = WebhookDelivery.objects.for_tenant(endpoint.tenant_id).filter(aggregate_seq=1)
    first.update(state=DeliveryState.EXHAUSTED, next_attempt_at=None, finished_at=at_noon)
    second = WebhookDelivery.objects.for_tenant(endpoint.tenant_id).filter(aggregate_seq=2)
    second.update(next_attempt_at=at_noon)
    operator.post(path(endpoint, "resend"))
    assert first.get().next_attempt_at is None
    answer(endpoint, 200)
    assert first.get().next_attempt_at is not None


def test_only_deliveries_of_that_endpoint_are_resent(operator: Client, gone: WebhookEndpoint) -> None:
    other, _ = create_endpoint(gone.tenant_id, "https://other.example/")
    response = operator.post(path(other, "resend"), follow=True)
    assert "0 deliveries will be sent again" in response.content.decode()
    assert states(gone) == [DeliveryState.EXHAUSTED] * 3


@pytest.mark.parametrize(("action", "reason"), [("enable", "active"), ("resend", "disabled")])
def test_an_action_that_the_state_forbids_is_refused_with_the_reason(
    admin: Client, gone: WebhookEndpoint, action: str, reason: str
) -> None:
    if action == "enable":
        WebhookEndpoint.objects.for_tenant(gone.tenant_id).update(active=True)
    response = admin.post(path(gone, action), follow=True)
    assert reason in " ".join(str(message) for message in response.context["messages"])
    assert not OperatorAction.across_tenants.exists()


def test_an_endpoint_is_not_found_under_another_tenant(
    admin: Client, gone: WebhookEndpoint, intruder: Tenant
) -> None:
    there = f"/webhooks/{intruder.tenant_id}/{gone.endpoint_id}/enable/"
    assert admin.post(there).status_code == 404


@pytest.mark.parametrize("action", ["enable", "resend"])
def test_a_viewer_is_refused(viewer: Client, gone: WebhookEndpoint, action: str) -> None:
    assert viewer.post(path(gone, action)).status_code == 403
    gone.refresh_from_db()
    assert not gone.active
    assert states(gone) == [DeliveryState.EXHAUSTED] * 3


def test_the_list_runs_at_most_one_query_per_endpoint(
    viewer: Client, tenant: Tenant, django_assert_max_num_queries: Any
) -> None:
    for number in range(10):
        create_endpoint(tenant.tenant_id, f"https://hooks.example/{number}")
    with django_assert_max_num_queries(10 + 10):
        viewer.get("/webhooks/")

"""An active webhook endpoint that keeps failing needs attention: on the dashboard, in doctor and on its own page."""

from __future__ import annotations

from datetime import datetime, timedelta
from html import unescape

import pytest
from django.test import Client

from eventservice.db.now import db_now, pin_time
from eventservice.kernel.findings import Finding
from eventservice.kernel.ids import new_id
from eventservice.management.commands.doctor import check_running_system
from eventservice.operators.health import check_webhook_endpoints
from eventservice.tenants.models import Tenant
from outbox.models import WebhookEndpoint
from outbox.publishers.webhook.delivery_queue import WebhookResult, claim_deliveries, record_results
from outbox.publishers.webhook.endpoints import create_endpoint, set_endpoint_active
from outbox.publishers.webhook.publisher import WebhookPublisher
from tests.outbox.support import build_dispatcher, drain, store_run

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]

CALLS, EVENTS = 4, 3


@pytest.fixture
def endpoint(tenant: Tenant) -> WebhookEndpoint:
    """An endpoint to which events of several calls are to be sent."""
    endpoint, _ = create_endpoint(tenant.tenant_id, "https://user:hush@hooks.example/in?token=hush")
    for _ in range(CALLS):
        store_run(new_id(), EVENTS, tenant_id=endpoint.tenant_id)
    drain(build_dispatcher(WebhookPublisher()))
    return endpoint


def answer(endpoint: WebhookEndpoint, status: int, limit: int = CALLS) -> None:
    due, _ = claim_deliveries(endpoint, limit)
    assert len(due) == limit
    record_results(endpoint, [WebhookResult(delivery, status) for delivery in due])


def fail_twice(endpoint: WebhookEndpoint, now: datetime) -> datetime:
    """Let all first deliveries fail at noon and an hour later. Return the time after that."""
    answer(endpoint, 500)
    with pin_time(now + timedelta(hours=1)):
        answer(endpoint, 500)
    return now + timedelta(hours=1, minutes=5)


def list_endpoint_problems() -> list[Finding]:
    return [finding for finding in check_webhook_endpoints(None, db_now()) if not finding.is_ok]


def test_the_dashboard_names_it_and_links_to_its_page(
    viewer: Client, endpoint: WebhookEndpoint, at_noon: datetime
) -> None:
    with pin_time(fail_twice(endpoint, at_noon)):
        page = unescape(viewer.get("/").content.decode())
    text = "The webhook endpoint hooks.example of acme is failing: 12 deliveries wait, the oldest failing one for 1 h"
    assert text in page
    assert "HTTP 500" in page
    assert f'href="/webhooks/{endpoint.tenant_id}/{endpoint.endpoint_id}/"' in page
    assert "hush" not in page


def test_doctor_reports_it(endpoint: WebhookEndpoint, at_noon: datetime) -> None:
    (fine,) = [finding for finding in check_running_system() if finding.code == "failing_endpoint"]
    assert fine.is_ok
    with pin_time(fail_twice(endpoint, at_noon)):
        (failing,) = [finding for finding in check_running_system() if finding.code == "failing_endpoint"]
    assert not failing.is_ok
    assert "HTTP 500" in failing.remedy


def test_its_own_page_says_so(viewer: Client, endpoint: WebhookEndpoint, at_noon: datetime) -> None:
    address = f"/webhooks/{endpoint.tenant_id}/{endpoint.endpoint_id}/"
    assert '<span class="pill ok">active</span>' in viewer.get(address).content.decode()
    with pin_time(fail_twice(endpoint, at_noon)):
        page = viewer.get(address).content.decode()
    assert '<span class="pill warning">failing</span>' in page
    assert '<span class="pill ok">active</span>' not in page
    assert "Deliveries to this endpoint keep failing: HTTP 500." in page


def test_a_single_failure_and_new_deliveries_are_no_problem(endpoint: WebhookEndpoint) -> None:
    assert list_endpoint_problems() == []
    answer(endpoint, 500)
    assert list_endpoint_problems() == []


def test_an_endpoint_that_has_recovered_or_is_disabled_is_no_problem(
    endpoint: WebhookEndpoint, at_noon: datetime
) -> None:
    with pin_time(fail_twice(endpoint, at_noon)):
        set_endpoint_active(endpoint.tenant_id, endpoint.endpoint_id, active=False)
        assert list_endpoint_problems() == []
        set_endpoint_active(endpoint.tenant_id, endpoint.endpoint_id, active=True)
        assert len(list_endpoint_problems()) == 1
    with pin_time(at_noon + timedelta(hours=2)):
        answer(endpoint, 200)
        assert list_endpoint_problems() == []


def test_the_dashboard_of_one_tenant_shows_nothing_of_another(
    viewer: Client, endpoint: WebhookEndpoint, intruder: Tenant, at_noon: datetime
) -> None:
    with pin_time(fail_twice(endpoint, at_noon)):
        page = viewer.get(f"/?tenant={intruder.tenant_id}").content.decode()
    assert "hooks.example" not in page

"""An active webhook endpoint that keeps failing needs attention: on the dashboard, in doctor and on its own page."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta
from html import unescape
from io import StringIO

import pytest
from django.core.management import call_command
from django.test import Client

from eventservice.db.now import db_now, pin_time
from eventservice.kernel.findings import Finding
from eventservice.kernel.ids import new_id
from eventservice.management.commands.doctor import check_running_system
from eventservice.operators.health import check_webhook_endpoints
from eventservice.tenants.models import Tenant
from outbox.models import WebhookDelivery, WebhookEndpoint
from outbox.publishers.webhook.delivery_queue import (
    GONE_REASON,
    WebhookResult,
    claim_deliveries,
    give_up_gone_endpoint,
    record_results,
)
from outbox.publishers.webhook.endpoints import create_endpoint, set_endpoint_active
from outbox.publishers.webhook.publisher import WebhookPublisher
from outbox.publishers.webhook.recovery import count_gone_endpoints, list_endpoint_queues
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


def recover(endpoint: WebhookEndpoint, limit: int) -> None:
    """Let the endpoint accept some deliveries of those that are due."""
    answer(endpoint, 200, limit)


def test_while_it_recovers_all_pages_and_commands_say_so(
    viewer: Client, endpoint: WebhookEndpoint, at_noon: datetime
) -> None:
    fail_twice(endpoint, at_noon)
    now = at_noon + timedelta(hours=2)
    with pin_time(now):
        recover(endpoint, 1)
    with pin_time(now + timedelta(minutes=1)):
        (finding,) = list_endpoint_problems()
        assert finding.text == (
            "The webhook endpoint hooks.example of acme is recovering: it accepted a delivery 1 m ago, "
            "11 deliveries still wait."
        )
        assert f"`manage.py webhook retry {endpoint.endpoint_id}`" in finding.remedy
        assert "HTTP 500" in finding.remedy
        for address in ("/webhooks/", f"/webhooks/{endpoint.tenant_id}/{endpoint.endpoint_id}/"):
            page = viewer.get(address).content.decode()
            assert '<span class="pill warning">recovering</span>' in page
            assert "failing" not in page.partition("<main")[2]
        out = StringIO()
        call_command("webhook", "list", stdout=out)
        assert f"{endpoint.endpoint_id}  recovering  11 " in out.getvalue()
        assert (
            "accepted a delivery at 2026-03-01T14:00:00.000Z, last failure at 2026-03-01T13:00:00.000Z; 11 still wait"
            in out.getvalue()
        )


def test_what_is_on_its_way_during_a_recovery_hides_no_failure(
    endpoint: WebhookEndpoint, at_noon: datetime
) -> None:
    # The delivery whose next attempt is the latest is one that has been claimed, and has not failed.
    fail_twice(endpoint, at_noon)
    with pin_time(at_noon + timedelta(hours=2)):
        recover(endpoint, 1)
        claim_deliveries(endpoint, 1)
        WebhookDelivery.objects.for_tenant(endpoint.tenant_id).filter(attempts=1, state="Pending").update(
            next_attempt_at=at_noon + timedelta(hours=9)
        )
        (finding,) = list_endpoint_problems()
        (queue,) = list_endpoint_queues(None, 9, 99)
        assert (finding.code, queue.state) == ("failing_endpoint", "recovering")


def test_an_endpoint_that_fails_again_is_not_recovering(endpoint: WebhookEndpoint, at_noon: datetime) -> None:
    fail_twice(endpoint, at_noon)
    with pin_time(at_noon + timedelta(hours=2)):
        recover(endpoint, 1)
    with pin_time(at_noon + timedelta(hours=2, minutes=1)):
        store_run(new_id(), 1, tenant_id=endpoint.tenant_id)
        drain(build_dispatcher(WebhookPublisher()))
        assert "is recovering" in list_endpoint_problems()[0].text
        fresh, _ = claim_deliveries(endpoint, 32)
        record_results(endpoint, [WebhookResult(delivery, 500) for delivery in fresh])
        assert "is failing" in list_endpoint_problems()[0].text


def test_an_old_delivery_that_fails_again_ends_the_recovery(
    endpoint: WebhookEndpoint, at_noon: datetime
) -> None:
    fail_twice(endpoint, at_noon)
    now = at_noon + timedelta(hours=2)
    with pin_time(now):
        recover(endpoint, 1)
        assert "is recovering" in list_endpoint_problems()[0].text
    with pin_time(now + timedelta(minutes=1)):
        answer(endpoint, 500, 2)
        assert "is failing" in list_endpoint_problems()[0].text
    with pin_time(now + timedelta(minutes=2)):
        recover(endpoint, 1)
        assert "is recovering" in list_endpoint_problems()[0].text


def test_a_failure_in_the_batch_of_an_acceptance_does_not_end_the_recovery(
    endpoint: WebhookEndpoint, at_noon: datetime
) -> None:
    with pin_time(fail_twice(endpoint, at_noon) + timedelta(hours=1)):
        first, second = claim_deliveries(endpoint, 2)[0]
        record_results(endpoint, [WebhookResult(first, 200), WebhookResult(second, 500)])
        assert "is recovering" in list_endpoint_problems()[0].text


def test_the_time_of_the_last_failure_is_stored_and_shown(
    viewer: Client, endpoint: WebhookEndpoint, at_noon: datetime
) -> None:
    address = f"/webhooks/{endpoint.tenant_id}/{endpoint.endpoint_id}/"
    answer(endpoint, 200, 1)
    assert "Last failure none recorded" in read_text(viewer, address)
    assert json.loads(run_webhook("list", "--json"))[0]["lastFailedAt"] is None
    with pin_time(fail_twice(endpoint, at_noon)):
        assert "Last failure 5 m ago" in read_text(viewer, address)
        assert ", last 5 m ago" in read_text(viewer, "/webhooks/")
        assert ", last failure at 2026-03-01T13:00:00.000Z: HTTP 500" in run_webhook("list")
    with pin_time(at_noon + timedelta(hours=2)):
        recover(endpoint, 1)
        (row,) = json.loads(run_webhook("list", "--json"))
        assert (row["state"], row["acceptedAt"], row["lastFailedAt"]) == (
            "recovering", "2026-03-01T14:00:00.000Z", "2026-03-01T13:00:00.000Z",
        )  # fmt: skip
        assert "last failure 1 h ago" in read_text(viewer, "/webhooks/")
        assert "The last attempt that failed ended 1 h ago" in read_text(viewer, address)


def read_text(client: Client, address: str) -> str:
    """Return the text of a page, with single spaces and without tags."""
    return " ".join(re.sub(r"<[^>]+>", " ", client.get(address).content.decode()).split())


def run_webhook(*arguments: str) -> str:
    out = StringIO()
    call_command("webhook", *arguments, stdout=out)
    return out.getvalue()


def test_an_endpoint_that_has_disabled_itself_is_reported(viewer: Client, endpoint: WebhookEndpoint) -> None:
    answer(endpoint, 410)
    give_up_gone_endpoint(500)
    (finding,) = list_endpoint_problems()
    assert finding.code == "disabled_endpoint"
    assert finding.text == (
        "The webhook endpoint hooks.example of acme was disabled at 2026-03-01 12:00:00 UTC because it answered 410 Gone; "
        "12 deliveries were given up."
    )
    assert f"`manage.py webhook enable {endpoint.endpoint_id}`" in finding.remedy
    assert (
        f"`manage.py webhook catch-up {endpoint.endpoint_id} --since 2026-03-01T12:00:00Z`" in finding.remedy
    )
    assert finding in [one for one in check_running_system() if not one.is_ok]
    page = unescape(viewer.get("/").content.decode())
    assert finding.text in page
    assert f'href="/webhooks/{endpoint.tenant_id}/{endpoint.endpoint_id}/"' in page
    assert count_gone_endpoints() == 1
    set_endpoint_active(endpoint.tenant_id, endpoint.endpoint_id, active=True)
    assert list_endpoint_problems() == []


def test_an_endpoint_that_an_operator_has_disabled_is_not_reported(endpoint: WebhookEndpoint) -> None:
    set_endpoint_active(endpoint.tenant_id, endpoint.endpoint_id, active=False)
    assert (list_endpoint_problems(), count_gone_endpoints()) == ([], 0)


def test_the_dashboard_of_one_tenant_shows_nothing_of_another(
    viewer: Client, endpoint: WebhookEndpoint, intruder: Tenant, at_noon: datetime
) -> None:
    with pin_time(fail_twice(endpoint, at_noon)):
        page = viewer.get(f"/?tenant={intruder.tenant_id}").content.decode()
        gone, _ = create_endpoint(endpoint.tenant_id, "https://hooks.example/gone")
        WebhookEndpoint.objects.for_tenant(gone.tenant_id).filter(endpoint_id=gone.endpoint_id).update(
            active=False, disabled_reason=GONE_REASON
        )
        page += viewer.get(f"/?tenant={intruder.tenant_id}").content.decode()
    assert "hooks.example" not in page

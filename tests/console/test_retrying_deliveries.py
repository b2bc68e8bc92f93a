"""Deliveries that wait for another attempt are sent at once when an operator asks: all of an endpoint, or one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from eventservice.db.now import pin_time
from eventservice.kernel.ids import new_id
from eventservice.operators.models import OperatorAction
from eventservice.tenants.models import Tenant
from outbox.models import DeliveryState, WebhookDelivery, WebhookEndpoint
from outbox.publishers.webhook.delivery_queue import (
    MAX_ATTEMPTS,
    WebhookResult,
    claim_deliveries,
    record_results,
)
from outbox.publishers.webhook.endpoints import create_endpoint, set_endpoint_active
from outbox.publishers.webhook.publisher import WebhookPublisher
from tests.outbox.support import build_dispatcher, drain, store_run

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]

CALLS = 3
NOTHING_TO_RETRY = "Nothing to retry: all pending deliveries are due within a minute, or wait behind such."

RETRIED = f"{CALLS} deliveries are due now; {CALLS} others are already due or wait behind earlier events of their call."


@pytest.fixture
def endpoint(tenant: Tenant) -> WebhookEndpoint:
    return create_endpoint(tenant.tenant_id, "https://hooks.example/in?token=hush")[0]


@pytest.fixture
def hour_later(endpoint: WebhookEndpoint, at_noon: datetime) -> Iterator[datetime]:
    """Let the first deliveries of some calls fail at noon and after an hour, and wait long for their next attempt."""
    for _ in range(CALLS):
        store_run(new_id(), 2, tenant_id=endpoint.tenant_id)
    drain(build_dispatcher(WebhookPublisher()))
    answer(endpoint, 500)
    now = at_noon + timedelta(hours=1)
    with pin_time(now):
        answer(endpoint, 503)
        select(endpoint).filter(attempts=2).update(next_attempt_at=now + timedelta(hours=2))
        yield now


def select(endpoint: WebhookEndpoint, **wanted: Any) -> Any:
    return WebhookDelivery.objects.for_tenant(endpoint.tenant_id).filter(**wanted)


def answer(endpoint: WebhookEndpoint, status: int) -> int:
    due, _ = claim_deliveries(endpoint, 10)
    record_results(endpoint, [WebhookResult(delivery, status) for delivery in due])
    return len(due)


def build_path(endpoint: WebhookEndpoint, rest: str = "") -> str:
    return f"/webhooks/{endpoint.tenant_id}/{endpoint.endpoint_id}/{rest}"


def post(client: Client, path: str) -> str:
    response = client.post(path, follow=True, headers={"Referer": path.removesuffix("retry/")})
    return " ".join(str(message) for message in response.context["messages"])


def list_actions() -> list[tuple[str, str]]:
    return list(OperatorAction.across_tenants.order_by("id").values_list("user", "action"))


# --- the list of endpoints ----------------------------------------------------------------------------------------


def test_the_list_shows_which_endpoint_fails_since_when_and_why(
    viewer: Client, endpoint: WebhookEndpoint, hour_later: datetime, intruder: Tenant
) -> None:
    create_endpoint(intruder.tenant_id, "https://fine.example/")
    page = " ".join(viewer.get("/webhooks/").content.decode().split())
    assert page.count('<span class="pill warning">failing</span>') == 1
    assert page.count('<span class="pill ok">active</span>') == 1
    assert re.search("failing</span> <span [^>]*> since <time .*: HTTP 503", page)
    ((queue, _, _),) = viewer.get(f"/webhooks/?tenant={endpoint.tenant_id}").context["rows"]
    assert (queue.pending, queue.failure.pending) == (2 * CALLS, 2 * CALLS)


def test_the_command_lists_it_too(endpoint: WebhookEndpoint, hour_later: datetime) -> None:
    out = StringIO()
    call_command("webhook", "list", "--json", stdout=out)
    (row,) = json.loads(out.getvalue())
    assert (row["failingSince"], row["lastError"]) == ("2026-03-01T12:00:00.000Z", "HTTP 503")
    call_command("webhook", "list", stdout=out)
    _, line = out.getvalue().splitlines()[-2:]
    assert f"{endpoint.endpoint_id}  failing  {2 * CALLS}" in line
    assert "all     since 2026-03-01T12:00:00.000Z, last failure at 2026-03-01T1" in line
    assert line.endswith(": HTTP 503")


# --- all of an endpoint -------------------------------------------------------------------------------------------


def test_what_waits_is_sent_at_once_and_the_audit_log_says_who_asked(
    operator: Client, viewer: Client, endpoint: WebhookEndpoint, hour_later: datetime
) -> None:
    assert "Retry now" not in viewer.get(build_path(endpoint)).content.decode().partition("banner")[0]
    assert viewer.post(build_path(endpoint, "retry/")).status_code == 403
    assert answer(endpoint, 200) == 0
    assert post(operator, build_path(endpoint, "retry/")) == RETRIED
    assert list_actions() == [("oscar", "endpoint-retry")]
    assert answer(endpoint, 200) == CALLS
    # The others follow theirs.
    assert answer(endpoint, 200) == CALLS
    assert not select(endpoint, state=DeliveryState.PENDING).exists()


def test_what_may_be_on_its_way_is_left_alone(
    operator: Client, endpoint: WebhookEndpoint, hour_later: datetime
) -> None:
    select(endpoint, attempts=2).update(next_attempt_at=hour_later)
    claimed, _ = claim_deliveries(endpoint, 10)
    assert post(operator, build_path(endpoint, "retry/")) == NOTHING_TO_RETRY
    assert list_actions() == []
    assert answer(endpoint, 200) == 0
    record_results(endpoint, [WebhookResult(delivery, 200) for delivery in claimed])
    assert select(endpoint, state=DeliveryState.DELIVERED).count() == CALLS


def test_a_disabled_endpoint_is_not_retried(
    operator: Client, endpoint: WebhookEndpoint, hour_later: datetime
) -> None:
    set_endpoint_active(endpoint.tenant_id, endpoint.endpoint_id, active=False)
    assert "Enable it first" in post(operator, build_path(endpoint, "retry/"))
    with pytest.raises(CommandError, match="Enable it first"):
        call_command("webhook", "retry", str(endpoint.endpoint_id))
    assert answer(endpoint, 200) == 0


def test_the_command_retries_and_is_recorded(endpoint: WebhookEndpoint, hour_later: datetime) -> None:
    out = StringIO()
    call_command("webhook", "retry", str(endpoint.endpoint_id), stdout=out)
    assert out.getvalue() == f"{RETRIED}\n"
    ((user, action),) = list_actions()
    assert user.startswith("manage.py (")
    assert action == "endpoint-retry"
    out = StringIO()
    call_command("webhook", "retry", str(endpoint.endpoint_id), stdout=out)
    assert out.getvalue() == f"{NOTHING_TO_RETRY}\n"
    assert answer(endpoint, 200) == CALLS


def test_nothing_of_another_endpoint_is_retried(
    operator: Client, endpoint: WebhookEndpoint, hour_later: datetime, intruder: Tenant
) -> None:
    other, _ = create_endpoint(endpoint.tenant_id, "https://other.example/")
    assert post(operator, build_path(other, "retry/")) == "Nothing is pending."
    foreign = f"/webhooks/{intruder.tenant_id}/{endpoint.endpoint_id}/retry/"
    assert operator.post(foreign).status_code == 404
    delivery = select(endpoint, attempts=2)[0]
    assert operator.post(build_path(other, f"deliveries/{delivery.delivery_id}/retry/")).status_code == 404
    assert select(endpoint, next_attempt_at=hour_later).count() == 0


def test_what_was_given_up_is_named_and_sent_again_by_the_command(
    operator: Client, endpoint: WebhookEndpoint, hour_later: datetime
) -> None:
    select(endpoint, attempts=2).update(attempts=MAX_ATTEMPTS - 1, next_attempt_at=hour_later)
    assert answer(endpoint, 500) == CALLS
    assert answer(endpoint, 200) == CALLS
    given_up = f"Nothing is pending. {CALLS} deliveries were given up: use Resend failed"
    assert post(operator, build_path(endpoint, "retry/")).startswith(given_up)
    out = StringIO()
    call_command("webhook", "retry", str(endpoint.endpoint_id), stdout=out)
    assert "`manage.py webhook retry --failed ID`" in out.getvalue()
    out = StringIO()
    call_command("webhook", "retry", "--failed", str(endpoint.endpoint_id), stdout=out)
    assert out.getvalue() == f"{CALLS} deliveries will be sent again.\n"
    assert answer(endpoint, 200) == CALLS
    assert list_actions()[-1][1] == "endpoint-resend"
    set_endpoint_active(endpoint.tenant_id, endpoint.endpoint_id, active=False)
    with pytest.raises(CommandError, match="Enable it first"):
        call_command("webhook", "retry", "--failed", str(endpoint.endpoint_id))


# --- one ----------------------------------------------------------------------------------------------------------


def test_one_delivery_is_retried(
    operator: Client, viewer: Client, endpoint: WebhookEndpoint, hour_later: datetime
) -> None:
    delivery = select(endpoint, attempts=2)[0]
    page = build_path(endpoint, f"deliveries/{delivery.delivery_id}/")
    assert "Retry now" in operator.get(page).content.decode()
    assert "Retry now" not in viewer.get(page).content.decode()
    assert viewer.post(page + "retry/").status_code == 403
    assert "due now" in post(operator, page + "retry/")
    assert list_actions() == [("oscar", "endpoint-retry")]
    assert "Retry now" not in operator.get(page).content.decode()
    assert answer(endpoint, 204) == 1
    delivery.refresh_from_db()
    assert delivery.state == DeliveryState.DELIVERED
    assert "has arrived" in post(operator, page + "retry/")


def test_one_delivery_that_was_given_up_is_sent_again(
    operator: Client, endpoint: WebhookEndpoint, hour_later: datetime
) -> None:
    select(endpoint, attempts=2).update(attempts=MAX_ATTEMPTS - 1, next_attempt_at=hour_later)
    assert answer(endpoint, 500) == CALLS
    delivery = select(endpoint, state=DeliveryState.EXHAUSTED)[0]
    page = build_path(endpoint, f"deliveries/{delivery.delivery_id}/")
    assert "Resend" in operator.get(page).content.decode()
    assert "due now" in post(operator, page + "retry/")
    delivery.refresh_from_db()
    assert (delivery.state, delivery.attempts) == (DeliveryState.PENDING, 0)
    assert select(endpoint, state=DeliveryState.EXHAUSTED).count() == CALLS - 1


@pytest.mark.parametrize(
    ("state", "reason"),
    [("behind", "waits for an earlier event"), ("soon", "due within a minute"), ("unknown", "")],
)
def test_a_delivery_in_another_state_is_refused_with_the_reason(
    operator: Client, endpoint: WebhookEndpoint, hour_later: datetime, state: str, reason: str
) -> None:
    behind, soon = select(endpoint, next_attempt_at=None)[0], select(endpoint, attempts=2)[0]
    select(endpoint, delivery_id=soon.delivery_id).update(next_attempt_at=hour_later + timedelta(seconds=30))
    found = {"behind": behind.delivery_id, "soon": soon.delivery_id, "unknown": new_id()}[state]
    path = build_path(endpoint, f"deliveries/{found}/retry/")
    if state == "unknown":
        assert operator.post(path).status_code == 404
    else:
        assert reason in post(operator, path)
    assert list_actions() == []

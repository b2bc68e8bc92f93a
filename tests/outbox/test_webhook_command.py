"""`manage.py webhook` creates, lists, disables, enables and removes endpoints directly in the database."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any
from uuid import UUID

import pytest
from django.core.management import CommandError, call_command

from eventservice.kernel.ids import new_id
from eventservice.kernel.secrets import decrypt
from eventservice.operators.models import OperatorAction
from eventservice.tenants.directory import update_tenant
from eventservice.tenants.models import Tenant
from outbox.models import WebhookDelivery, WebhookEndpoint
from outbox.publishers.webhook.publisher import WebhookPublisher
from tests.outbox.support import build_dispatcher, drain, store_run

pytestmark = pytest.mark.django_db

URL = "https://hooks.example/in"


def run_webhook(*arguments: str) -> str:
    out = StringIO()
    call_command("webhook", *arguments, stdout=out)
    return out.getvalue()


def add_endpoint(*more: str, url: str = URL) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(run_webhook("add", "--tenant", "acme", url, "--json", *more))
    return made


def list_rows(*more: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run_webhook("list", "--json", *more))
    return found


def list_stored(tenant: Tenant) -> list[WebhookEndpoint]:
    return list(WebhookEndpoint.objects.for_tenant(tenant.tenant_id))


def test_the_secret_is_shown_only_when_the_endpoint_is_created(tenant: Tenant) -> None:
    shown = run_webhook("add", "--tenant", "acme", URL)
    (endpoint,) = list_stored(tenant)
    secret = decrypt(endpoint.secret)
    assert secret.startswith("whsec_")
    assert f"secret    {secret}\n" in shown
    assert str(endpoint.endpoint_id) in shown
    assert (endpoint.url, endpoint.event_types, endpoint.active) == (URL, [], True)
    assert secret not in run_webhook("list") + run_webhook("list", "--json")


def test_it_subscribes_to_the_given_types(tenant: Tenant) -> None:
    add_endpoint("--type", "ServiceCallFailed", "--type", "ServiceCallSucceeded")
    assert list_stored(tenant)[0].event_types == ["ServiceCallFailed", "ServiceCallSucceeded"]
    with pytest.raises(CommandError, match="invalid choice"):
        add_endpoint("--type", "ServiceCallFaild")


@pytest.mark.parametrize(
    ("url", "rule"),
    [
        ("", "must not be empty"),
        ("nonsense", "does not have the form"),
        ("ftp://hooks.example/", "not http or https"),
        ("https://user:hush@hooks.example/", "user name or password"),
        ("http://169.254.169.254/latest", "link-local and cloud metadata"),
        ("http://127.0.0.1:9/", "loopback"),
        ("http://localhost:9/", "loopback"),
        ("http://[::1]:9/", "loopback"),
        ("http://10.1.2.3/", "private"),
    ],
)
def test_a_url_that_would_never_be_called_is_refused_with_the_rule(
    tenant: Tenant, settings: Any, url: str, rule: str
) -> None:
    settings.EGRESS_ALLOW, settings.EGRESS_ALLOW_PRIVATE = [], False
    with pytest.raises(CommandError, match=rule) as refused:
        add_endpoint(url=url)
    assert str(refused.value).startswith("url ")
    assert list_stored(tenant) == []


def test_an_address_that_the_operator_allows_is_accepted(tenant: Tenant, settings: Any) -> None:
    settings.EGRESS_ALLOW, settings.EGRESS_ALLOW_PRIVATE = ["127.0.0.1:9000"], True
    add_endpoint(url="http://127.0.0.1:9000/hook")
    add_endpoint(url="http://10.1.2.3/hook")
    assert len(list_stored(tenant)) == 2


def test_it_is_disabled_and_enabled_again(tenant: Tenant) -> None:
    one = add_endpoint()["endpointId"]
    run_webhook("disable", one)
    assert [(row["active"], row["disabledReason"]) for row in list_rows()] == [
        (False, "an operator has disabled it")
    ]
    with pytest.raises(CommandError, match="not active any more"):
        run_webhook("disable", one)
    run_webhook("enable", one)
    assert [(row["active"], row["disabledReason"]) for row in list_rows()] == [(True, "")]
    with pytest.raises(CommandError, match="active already"):
        run_webhook("enable", one)


def test_it_is_removed_with_its_deliveries(tenant: Tenant) -> None:
    removed, kept = add_endpoint()["endpointId"], add_endpoint("--type", "ServiceCallSubmitted")["endpointId"]
    store_run(new_id(), 1, tenant_id=tenant.tenant_id)
    drain(build_dispatcher(WebhookPublisher()))
    run_webhook("remove", removed)
    assert [(row["endpointId"], row["pending"]) for row in list_rows()] == [(kept, 1)]


def test_endpoints_are_listed_by_tenant_without_query_strings(tenant: Tenant, intruder: Tenant) -> None:
    add_endpoint(url=f"{URL}?token=hush")
    assert [(row["tenant"], row["url"]) for row in list_rows("--tenant", "acme")] == [("acme", f"{URL}?…")]
    assert list_rows("--tenant", "intruder") == []
    assert "webhook add" in run_webhook("list", "--tenant", "intruder")
    assert "acme" in run_webhook("list")


@pytest.mark.parametrize("action", ["enable", "disable", "remove", "retry"])
def test_an_unknown_endpoint_is_refused(action: str) -> None:
    with pytest.raises(CommandError, match="No such webhook endpoint"):
        run_webhook(action, str(UUID(int=7)))
    with pytest.raises(CommandError, match="is not an endpoint id"):
        run_webhook(action, "nonsense")


def list_delivered_events(endpoint_id: str) -> list[UUID]:
    """Return the events that the endpoint was sent or waits for, those that were added first at the beginning."""
    deliveries = WebhookDelivery.across_tenants.filter(endpoint_id=UUID(endpoint_id)).order_by("delivery_id")
    return list(deliveries.values_list("event_id", flat=True))


def publish_run(tenant: Tenant, call_id: UUID, first: int, **given: Any) -> UUID:
    """Publish one event of a call, and return its id."""
    (event,) = store_run(call_id, 1, first, tenant_id=tenant.tenant_id, **given)
    drain(build_dispatcher(WebhookPublisher()))
    return event.event_id


def test_an_endpoint_catches_up_with_what_it_missed_and_nothing_else(
    tenant: Tenant, intruder: Tenant
) -> None:
    missed, whole = (add_endpoint(url=f"{URL}/{name}")["endpointId"] for name in ("missed", "whole"))
    call_id = new_id()
    before = publish_run(tenant, call_id, 1)
    run_webhook("disable", missed)
    meanwhile = publish_run(tenant, call_id, 2)
    publish_run(intruder, new_id(), 1)
    run_webhook("enable", missed)
    after = publish_run(tenant, call_id, 3)

    assert "1 event will be sent" in run_webhook("catch-up", missed, "--since", "1h")
    assert "0 events will be sent" in run_webhook("catch-up", missed, "--since", "1h")

    assert list_delivered_events(missed) == [before, after, meanwhile]
    assert list_delivered_events(whole) == [before, meanwhile, after]


def test_an_endpoint_catches_up_with_events_that_it_subscribes_to(tenant: Tenant) -> None:
    publish_run(tenant, new_id(), 1)
    failed = publish_run(tenant, new_id(), 1, type="ServiceCallFailed")
    endpoint = add_endpoint("--type", "ServiceCallFailed")["endpointId"]
    run_webhook("catch-up", endpoint, "--since", "1h")
    assert list_delivered_events(endpoint) == [failed]


def test_only_what_was_published_since_then_is_sent(tenant: Tenant) -> None:
    publish_run(tenant, new_id(), 1)
    endpoint = add_endpoint()["endpointId"]
    assert "0 events" in run_webhook("catch-up", endpoint, "--since", "2100-01-01T00:00:00Z")


def test_a_disabled_endpoint_cannot_catch_up(tenant: Tenant) -> None:
    endpoint = add_endpoint()["endpointId"]
    run_webhook("disable", endpoint)
    with pytest.raises(CommandError, match="disabled"):
        run_webhook("catch-up", endpoint, "--since", "1h")


def test_every_change_is_in_the_audit_log(tenant: Tenant) -> None:
    one = add_endpoint(url=f"{URL}?token=hush")["endpointId"]
    for action in ("disable", "enable", "remove"):
        run_webhook(action, one)
    run_webhook("list")
    entries = OperatorAction.across_tenants.order_by("id")
    assert [(entry.action, entry.subject, entry.tenant_id) for entry in entries] == [
        (f"endpoint-{action}", one, tenant.tenant_id) for action in ("create", "disable", "enable", "delete")
    ]
    assert all(entry.user.startswith("manage.py (") for entry in entries)
    assert "hush" not in str([entry.detail for entry in entries])


def test_an_unknown_tenant_is_refused() -> None:
    with pytest.raises(CommandError, match="There is no tenant"):
        run_webhook("add", "--tenant", "nobody", URL)


def test_an_endpoint_at_a_host_that_the_tenant_may_not_call_is_refused(tenant: Tenant) -> None:
    update_tenant(tenant.tenant_id, allowed_hosts=["fine.example", "hooks.fine.example"])
    with pytest.raises(CommandError, match=r"allowed hosts: fine\.example, hooks\.fine\.example"):
        add_endpoint()
    assert not list_rows()
    add_endpoint(url="https://HOOKS.fine.example:8443/in")
    assert len(list_rows()) == 1

"""`manage.py webhook`: endpoints are made, listed, disabled, enabled and removed on the database itself."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any
from uuid import UUID

import pytest
from django.core.management import CommandError, call_command

from eventservice.kernel.ids import new_id
from eventservice.kernel.secrets import decrypt
from eventservice.tenants.models import Tenant
from outbox.models import WebhookEndpoint
from outbox.publishers.webhook.publisher import WebhookPublisher
from tests.outbox.support import build_dispatcher, drain, store_run

pytestmark = pytest.mark.django_db

URL = "https://hooks.example/in"


def webhook(*arguments: str) -> str:
    out = StringIO()
    call_command("webhook", *arguments, stdout=out)
    return out.getvalue()


def add(*more: str, url: str = URL) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(webhook("add", "--tenant", "acme", url, "--json", *more))
    return made


def listed(*more: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(webhook("list", "--json", *more))
    return found


def stored(tenant: Tenant) -> list[WebhookEndpoint]:
    return list(WebhookEndpoint.objects.for_tenant(tenant.tenant_id))


def test_a_new_one_shows_its_secret_this_once(tenant: Tenant) -> None:
    shown = webhook("add", "--tenant", "acme", URL)
    (endpoint,) = stored(tenant)
    secret = decrypt(endpoint.secret)
    assert secret.startswith("whsec_")
    assert f"secret    {secret}\n" in shown
    assert str(endpoint.endpoint_id) in shown
    assert (endpoint.url, endpoint.event_types, endpoint.active) == (URL, [], True)
    assert secret not in webhook("list") + webhook("list", "--json")


def test_it_gets_the_events_that_it_asks_for(tenant: Tenant) -> None:
    add("--type", "ServiceCallFailed", "--type", "ServiceCallSucceeded")
    assert stored(tenant)[0].event_types == ["ServiceCallFailed", "ServiceCallSucceeded"]
    with pytest.raises(CommandError, match="invalid choice"):
        add("--type", "ServiceCallFaild")


@pytest.mark.parametrize(
    ("url", "rule"),
    [
        ("", "must not be empty"),
        ("nonsense", "not of the form"),
        ("ftp://hooks.example/", "not http or https"),
        ("https://user:hush@hooks.example/", "user information"),
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
        add(url=url)
    assert str(refused.value).startswith("url ")
    assert stored(tenant) == []


def test_an_address_that_the_operator_has_opened_is_taken(tenant: Tenant, settings: Any) -> None:
    settings.EGRESS_ALLOW, settings.EGRESS_ALLOW_PRIVATE = ["127.0.0.1:9000"], True
    add(url="http://127.0.0.1:9000/hook")
    add(url="http://10.1.2.3/hook")
    assert len(stored(tenant)) == 2


def test_it_is_disabled_and_enabled_again(tenant: Tenant) -> None:
    one = add()["endpointId"]
    webhook("disable", one)
    assert [(row["active"], row["disabledReason"]) for row in listed()] == [
        (False, "an operator has disabled it")
    ]
    with pytest.raises(CommandError, match="not active any more"):
        webhook("disable", one)
    webhook("enable", one)
    assert [(row["active"], row["disabledReason"]) for row in listed()] == [(True, "")]
    with pytest.raises(CommandError, match="active already"):
        webhook("enable", one)


def test_it_is_removed_unless_something_was_to_be_delivered_to_it(tenant: Tenant) -> None:
    unused, used = add()["endpointId"], add("--type", "ServiceCallSubmitted")["endpointId"]
    webhook("disable", unused)
    store_run(new_id(), 1, tenant_id=tenant.tenant_id)
    drain(build_dispatcher(WebhookPublisher()))
    webhook("remove", unused)
    with pytest.raises(CommandError, match="has deliveries"):
        webhook("remove", used)
    assert [(row["endpointId"], row["pending"]) for row in listed()] == [(used, 1)]


def test_they_are_listed_by_tenant_and_without_what_may_be_a_secret(tenant: Tenant, intruder: Tenant) -> None:
    add(url=f"{URL}?token=hush")
    assert [(row["tenant"], row["url"]) for row in listed("--tenant", "acme")] == [("acme", f"{URL}?…")]
    assert listed("--tenant", "intruder") == []
    assert "webhook add" in webhook("list", "--tenant", "intruder")
    assert "acme" in webhook("list")


@pytest.mark.parametrize("action", ["enable", "disable", "remove"])
def test_one_that_there_is_not_is_refused(action: str) -> None:
    with pytest.raises(CommandError, match="No such webhook endpoint"):
        webhook(action, str(UUID(int=7)))
    with pytest.raises(CommandError, match="is not an endpoint id"):
        webhook(action, "nonsense")


def test_a_tenant_that_there_is_not_gets_none() -> None:
    with pytest.raises(CommandError, match="There is no tenant"):
        webhook("add", "--tenant", "nobody", URL)

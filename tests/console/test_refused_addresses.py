"""The console refuses an address that can never be called, and names the setting that would allow it."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from eventservice.tenants.directory import create_tenant
from eventservice.tenants.models import Tenant
from outbox.models import WebhookEndpoint
from tests.console.call_pages import BROWSER, NEW, fill_form, list_calls, read_text

pytestmark = pytest.mark.django_db

ADDRESS = "http://127.0.0.1:3000/hook"
REFUSAL = (
    "127.0.0.1:3000 is an address that may not be called: loopback (127.0.0.0/8). An operator can allow it"
)


@pytest.fixture(autouse=True)
def acme() -> Tenant:
    return create_tenant("acme")


@pytest.mark.parametrize("is_allowed", [False, True])
def test_in_the_form_for_a_new_call(operator: Client, settings: Any, is_allowed: bool) -> None:
    settings.EGRESS_ALLOW = ["127.0.0.1:3000"] if is_allowed else []
    page = read_text(operator.post(NEW, fill_form(operator, url=ADDRESS), headers=BROWSER))
    assert (
        f"URL is refused: {REFUSAL} with the setting EGRESS_ALLOW=127.0.0.1:3000." in page
    ) is not is_allowed
    assert len(list_calls()) == is_allowed


@pytest.mark.parametrize("is_allowed", [False, True])
def test_in_the_form_for_a_webhook_endpoint(
    admin: Client, acme: Tenant, settings: Any, is_allowed: bool
) -> None:
    settings.EGRESS_ALLOW = ["127.0.0.1:3000"] if is_allowed else []
    form = {"tenant": str(acme.tenant_id), "url": ADDRESS}
    page = read_text(admin.post(reverse("console:new-endpoint"), form, headers=BROWSER))
    assert (REFUSAL in page) is not is_allowed
    assert WebhookEndpoint.across_tenants.count() == is_allowed

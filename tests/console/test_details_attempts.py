"""The attempts of a call on its page, however many there are and whatever was hidden in their answers."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from eventservice.tenants.directory import create_tenant
from eventservice.tenants.models import Tenant
from execution.redaction import MASK
from tests.console.call_pages import BROWSER, address_of, text_of
from tests.factories import HttpExecutionFactory, ServiceCallFactory

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme(db: None) -> Tenant:
    return create_tenant("acme")


def page_of(client: Client, acme: Tenant, attempts: int, tab: str, **given: Any) -> Any:
    call = ServiceCallFactory(tenant_id=acme.tenant_id, attempt=attempts)
    for number in range(1, attempts + 1):
        HttpExecutionFactory(
            tenant_id=acme.tenant_id, service_call_id=call.service_call_id, attempt=number, **given
        )
    return client.get(address_of(call.tenant_id, call.service_call_id), {"tab": tab}, headers=BROWSER)


def test_of_very_many_the_first_and_the_last_are_listed_and_the_rest_is_counted(
    viewer: Client, acme: Tenant
) -> None:
    page = page_of(viewer, acme, 120, "attempts")
    assert page.content.decode().count("?tab=response&amp;attempt=") == 104
    assert "16 more attempts, which the API lists" in text_of(page)


def test_all_of_a_few_are_listed(viewer: Client, acme: Tenant) -> None:
    page = page_of(viewer, acme, 3, "attempts")
    assert page.content.decode().count("?tab=response&amp;attempt=") == 3
    assert "which the API lists" not in text_of(page)


PHASES = {"dnsMs": 1.0, "connectMs": 3.0, "tlsMs": 12.1, "firstByteMs": 40.3}


@pytest.mark.parametrize(
    ("phases", "shown"),
    [
        (PHASES, "DNS 1.0 ms · connect 3.0 ms · TLS 12 ms · first byte 40 ms · total 42 ms"),
        ({"firstByteMs": 40.3}, "first byte 40 ms · total 42 ms"),
    ],
)
def test_it_says_where_the_time_went(
    phases: dict[str, float], shown: str, viewer: Client, acme: Tenant
) -> None:
    times = {"response_status": 200, "latency_ms": 42.0, "phases": phases}
    assert shown in text_of(page_of(viewer, acme, 1, "response", **times))
    assert f'title="{shown}"' in page_of(viewer, acme, 1, "attempts", **times).content.decode()


@pytest.mark.parametrize("phases", [None, {}])
def test_where_that_is_not_known_it_says_how_long_it_took(
    phases: dict[str, float] | None, viewer: Client, acme: Tenant
) -> None:
    page = text_of(page_of(viewer, acme, 1, "response", response_status=200, latency_ms=42.0, phases=phases))
    assert "42 ms" in page
    assert "total" not in page


def test_a_body_with_a_mask_is_whole_although_more_came(viewer: Client, acme: Tenant) -> None:
    answer = {"response_status": 200, "response_body": f"token {MASK}", "response_size": 500}
    page = text_of(page_of(viewer, acme, 1, "response", **answer))
    assert "500 B" in page
    assert "Shown: the first" not in page

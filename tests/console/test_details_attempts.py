"""The attempts of a call are shown, however many there are, with secrets masked in their responses."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from eventservice.tenants.directory import create_tenant
from eventservice.tenants.models import Tenant
from execution.redaction import MASK
from tests.console.call_pages import BROWSER, build_call_url, read_text
from tests.factories import HttpExecutionFactory, ServiceCallFactory

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme(db: None) -> Tenant:
    return create_tenant("acme")


def get_page(client: Client, acme: Tenant, attempts: int, tab: str, **given: Any) -> Any:
    call = ServiceCallFactory(tenant_id=acme.tenant_id, attempt=attempts)
    for number in range(1, attempts + 1):
        HttpExecutionFactory(
            tenant_id=acme.tenant_id, service_call_id=call.service_call_id, attempt=number, **given
        )
    return client.get(build_call_url(call.tenant_id, call.service_call_id), {"tab": tab}, headers=BROWSER)


def test_the_first_and_last_of_very_many_attempts_are_listed(viewer: Client, acme: Tenant) -> None:
    page = get_page(viewer, acme, 120, "attempts")
    assert page.content.decode().count("?tab=response&amp;attempt=") == 104
    assert "16 more attempts in the API" in read_text(page)


def test_a_few_attempts_are_all_listed(viewer: Client, acme: Tenant) -> None:
    page = get_page(viewer, acme, 3, "attempts")
    assert page.content.decode().count("?tab=response&amp;attempt=") == 3
    assert "in the API" not in read_text(page)


PHASES = {"dnsMs": 1.0, "connectMs": 3.0, "tlsMs": 12.1, "firstByteMs": 40.3}


@pytest.mark.parametrize(
    ("phases", "shown"),
    [
        (PHASES, "DNS 1.0 ms · connect 3.0 ms · TLS 12 ms · first byte 40 ms · total 42 ms"),
        ({"firstByteMs": 40.3}, "first byte 40 ms · total 42 ms"),
    ],
)
def test_the_phases_of_an_attempt_are_shown(
    phases: dict[str, float], shown: str, viewer: Client, acme: Tenant
) -> None:
    times = {"response_status": 200, "latency_ms": 42.0, "phases": phases}
    assert shown in read_text(get_page(viewer, acme, 1, "response", **times))
    assert f'title="{shown}"' in get_page(viewer, acme, 1, "attempts", **times).content.decode()


@pytest.mark.parametrize("phases", [None, {}])
def test_an_attempt_without_phases_shows_its_latency(
    phases: dict[str, float] | None, viewer: Client, acme: Tenant
) -> None:
    page = read_text(
        get_page(viewer, acme, 1, "response", response_status=200, latency_ms=42.0, phases=phases)
    )
    assert "42 ms" in page
    assert "total" not in page


def test_a_masked_body_counts_as_whole(viewer: Client, acme: Tenant) -> None:
    answer = {"response_status": 200, "response_body": f"token {MASK}", "response_size": 500}
    page = read_text(get_page(viewer, acme, 1, "response", **answer))
    assert "500 B" in page
    assert "Showing the first" not in page

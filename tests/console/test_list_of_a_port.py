"""The filter by host takes a port, in the console and in the API: a host is shown with its port, and found by it."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest
from django.test import Client

from eventservice.tenants.keys import create_key
from eventservice.tenants.models import Tenant
from execution.url_rules import split_port
from orchestration.models import ServiceCall
from orchestration.queries import call_lists
from tests.console.call_list import get_list_page, make_call, read_names, squeeze

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]

URLS = {
    "plain": "http://a.test/x",
    "secure": "https://a.test/x",
    "80": "HTTP://A.test:80",
    "secure-80": "https://a.test:80?x=http://a.test:8080/",
    "8080": "http://a.test:8080/x",
    "8080-query": "https://a.test:8080?x",
    "80801": "http://a.test:18080/8080",
    "v6": "http://[2001:DB8::1]:8080/",
    "v6-plain": "http://[2001:db8::1]/:8080/",
}
FOUND = {
    "a.test": {"plain", "secure", "80", "secure-80", "8080", "8080-query", "80801"},
    "A.test:8080": {"8080", "8080-query"},
    "a.test:80": {"plain", "80", "secure-80"},
    "a.test:443": {"secure"},
    "a.test:81": set(),
    "[2001:db8::1]:8080": {"v6"},
    "[2001:db8::1]:80": {"v6-plain"},
    "2001:db8::1": {"v6", "v6-plain"},
}


@pytest.fixture(autouse=True)
def calls(tenant: Tenant) -> None:
    for number, (name, url) in enumerate(URLS.items(), 1):
        host = "2001:db8::1" if name.startswith("v6") else "a.test"
        spec: dict[str, Any] = {"method": "GET", "url": url, "headers": {}, "body": None}
        make_call(tenant, number, name=name, host=host, request_spec=spec)


@pytest.fixture(params=[5000, 0], ids=["few", "walks"], autouse=True)
def set_few_or_walks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_lists, "MAX_SORTED_IDS", request.param)


def test_the_console_finds_the_calls_of_a_port(viewer: Client) -> None:
    for host, names in FOUND.items():
        for value in (host, f'"{host}"'):
            page = get_list_page(viewer, f"host={value.replace('[', '%5B').replace(']', '%5D')}")
            assert set(read_names(page)) == names, value


def test_the_filter_is_shown_with_its_port(viewer: Client) -> None:
    for value in ("a.test:8080", "%22a.test:8080%22"):
        page = get_list_page(viewer, f"host={value}")
        assert "a.test:8080" in page
        assert "a.test:8080…" not in page


def test_the_api_finds_the_calls_of_a_port(client: Client, tenant: Tenant) -> None:
    headers = {"Authorization": f"Bearer {create_key(tenant.tenant_id, ['read'])[1]}"}
    for host, names in FOUND.items():
        for sort in ("-submittedAt", "dueAt"):
            path = f"/api/v1/tenants/{tenant.tenant_id}/service-calls"
            items = client.get(path, {"host": host, "sort": sort}, headers=headers).json()["items"]
            assert {item["name"] for item in items} == names, host


def test_what_is_no_port_belongs_to_the_host() -> None:
    for text, expected in {
        "A.test": ("a.test", None), "a.test:": ("a.test:", None), "a.test:0": ("a.test:0", None),
        "a.test:x": ("a.test:x", None), "::1": ("::1", None), "[::1]": ("::1", None), "[::1]:9": ("::1", 9),
    }.items():  # fmt: skip
        assert split_port(text) == expected


# The port is shown unless it is the default of the scheme.
TARGETS = {
    "plain": "a.test",
    "secure": "a.test",
    "80": "a.test",
    "secure-80": "a.test:80",
    "8080": "a.test:8080",
    "8080-query": "a.test:8080",
    "80801": "a.test:18080",
    "v6": "[2001:db8::1]:8080",
    "v6-plain": "[2001:db8::1]",
}


def test_the_list_shows_the_port_of_each_call(viewer: Client) -> None:
    page = get_list_page(viewer)
    rows = re.findall(r'"name clip"[^>]*>([^<]*)</a>.*?clip target"[^>]*> GET ([^<]*) </span>', page)
    assert dict(rows) == TARGETS


def test_the_question_before_a_bulk_action_shows_the_port_of_each_call(operator: Client) -> None:
    page = squeeze(operator.get("/calls/bulk/?do=cancel").content.decode())
    rows = re.findall(
        r'<span class="clip" title="[^"]*">([^<]*)</span> <span class="small muted clip">([^<]*)<', page
    )
    assert dict(rows) == TARGETS


def test_the_pages_of_a_call_show_its_port_and_link_to_the_calls_of_that_port(viewer: Client) -> None:
    (call,) = ServiceCall.across_tenants.filter(name="8080")
    page = squeeze(viewer.get(f"/calls/{call.tenant_id}/{call.service_call_id}/").content.decode())
    link = re.search(
        r'href="/calls/\?([^"]*host=[^"]*)" title="All calls to a\.test:8080">a\.test:8080</a>', page
    )
    assert link
    assert set(read_names(get_list_page(viewer, unescape(link[1])))) == FOUND["A.test:8080"]
    trace = viewer.get(f"/traces/{call.tenant_id}/{call.correlation_id}/").content.decode()
    assert ">GET a.test:8080</span>" in trace


def test_a_url_that_is_no_longer_valid_shows_the_host_alone(viewer: Client, tenant: Tenant) -> None:
    spec: dict[str, Any] = {"method": "GET", "url": "http://b.test:99999/", "headers": {}, "body": None}
    make_call(tenant, 99, name="invalid", host="b.test", request_spec=spec)
    assert "GET b.test </span>" in get_list_page(viewer, "host=b.test")

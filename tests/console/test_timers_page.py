"""The list of durable timers and the page of one: search by id and due time, pages, links to calls."""

from __future__ import annotations

import re
import uuid
from datetime import datetime, timedelta
from html import unescape
from typing import Any
from urllib.parse import urlencode

import pytest
from django.test import Client

from eventservice.console import timers
from eventservice.kernel.ids import new_id
from eventservice.tenants.directory import declare_namespace
from eventservice.tenants.models import Tenant
from tests.console.call_list import make_call
from tests.factories import TenantFactory

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]

SPEC = {
    "method": "POST",
    "url": "https://user:pass@example.test/callback?token=hunter2",
    "headers": {},
    "body": {"namespace": "default", "timerId": "x", "payload": {"order": 17}, "executeAt": "2026-03-01T13:00:00Z"},
}  # fmt: skip


def make_timer(tenant: Tenant, timer_id: str, minutes: float = 0, **columns: Any) -> Any:
    """Create a durable timer that is due an hour and this many minutes after noon."""
    return make_call(tenant, minutes, external_id=timer_id, request_spec=SPEC, **columns)


def get_page(client: Client, *, status: int = 200, **query: Any) -> str:
    response = client.get(f"/timers/?{urlencode(query)}", HTTP_ACCEPT="text/html")
    assert response.status_code == status, response.content.decode()[:3000]
    return response.content.decode()


def read_ids(page: str) -> list[str]:
    return [unescape(found) for found in re.findall(r'class="name"><a class="break"[^>]*>([^<]*)</a>', page)]


def test_without_timers_the_page_says_how_to_set_one(viewer: Client, tenant: Tenant) -> None:
    make_call(tenant)
    assert "timers/create" in get_page(viewer)
    assert read_ids(get_page(viewer, show="all")) == []


def test_pending_timers_of_all_tenants_are_listed_the_first_due_first(
    viewer: Client, tenant: Tenant, intruder: Tenant
) -> None:
    make_timer(tenant, "third", 3)
    make_timer(intruder, "second", 2, status="Running")
    make_timer(tenant, "first", 1)
    make_timer(tenant, "ended", 0, status="Succeeded")
    make_call(tenant, name="no timer")
    page = get_page(viewer)
    assert read_ids(page) == ["first", "second", "third"]
    assert "https://example.test/callback?…" in page
    assert "hunter2" not in page
    assert "pass@" not in page
    assert read_ids(get_page(viewer, tenant=intruder.tenant_id)) == ["second"]
    assert read_ids(get_page(viewer, show="ended")) == ["ended"]
    assert read_ids(get_page(viewer, show="all")) == ["third", "second", "first", "ended"]


def test_timers_are_found_by_the_beginning_of_their_id(viewer: Client, tenant: Tenant) -> None:
    declare_namespace(tenant.tenant_id, "blue", 4)
    for timer_id in ("order-1", "order-17", "order-2", "Order-1", "my-order-1", "order%1"):
        make_timer(tenant, timer_id)
    make_timer(tenant, "order-18", namespace="blue")
    assert set(read_ids(get_page(viewer, id="order-1"))) == {"order-1", "order-17", "order-18"}
    assert read_ids(get_page(viewer, id="order%")) == ["order%1"]
    assert read_ids(get_page(viewer, id="order-1", tenant=tenant.tenant_id, namespace="blue")) == ["order-18"]
    assert "No timers match these filters" in get_page(viewer, id="nothing")


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"due": "overdue"}, ["late"]),
        ({"due": "1h"}, ["soon"]),
        ({"due": "24h"}, ["soon", "evening"]),
        ({"due": "7d"}, ["soon", "evening", "week"]),
        ({"from": "2026-03-01T14:00"}, ["evening", "week"]),
        ({"from": "2026-03-01T14:00Z", "to": "2026-03-02T00:00:00Z"}, ["evening"]),
    ],
)
def test_timers_are_found_by_when_they_are_due(
    viewer: Client, tenant: Tenant, query: dict[str, Any], found: list[str]
) -> None:
    for timer_id, minutes in (("late", -70), ("soon", -30), ("evening", 5 * 60), ("week", 5 * 24 * 60)):
        make_timer(tenant, timer_id, minutes)
    assert read_ids(get_page(viewer, **query)) == found


def test_pages_follow_each_other(viewer: Client, tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timers, "PAGE_SIZE", 2)
    for n in range(5):
        make_timer(tenant, f"timer {n}", n)
    found, query = [], "id=timer"
    for _ in range(3):
        page = viewer.get(f"/timers/?{query}").content.decode()
        found += read_ids(page)
        link = re.search(r'href="\?([^"]*cursor=[^"]*)"', page)
        query = unescape(link[1]) if link else ""
    assert found == [f"timer {n}" for n in range(5)]
    assert not query


def test_with_many_tenants_one_must_be_chosen(
    viewer: Client, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timers, "MAX_TENANTS", 1)
    make_timer(tenant, "one")
    other = TenantFactory(name="another")
    make_timer(other, "two")
    assert "Choose a tenant" in get_page(viewer)
    assert read_ids(get_page(viewer, tenant=other.tenant_id)) == ["two"]


@pytest.mark.parametrize(
    "query",
    [
        {"tenant": "x"},
        {"tenant": str(new_id())},
        {"due": "never"},
        {"from": "x"},
        {"cursor": "x"},
        {"show": "x"},
    ],
)
def test_invalid_filters_are_reported(viewer: Client, tenant: Tenant, query: dict[str, str]) -> None:
    make_timer(tenant, "one")
    page = get_page(viewer, status=400, **query)
    assert "Fix the filters" in page
    assert read_ids(page) == []


def get_details(client: Client, tenant_id: uuid.UUID, timer_id: str, namespace: str = "default") -> Any:
    query = urlencode({"tenant": tenant_id, "namespace": namespace, "id": timer_id})
    return client.get(f"/timers/timer/?{query}", HTTP_ACCEPT="text/html")


def test_a_timer_shows_what_it_is_set_to_and_links_to_its_calls(
    viewer: Client, tenant: Tenant, at_noon: datetime
) -> None:
    timer_id = "a/b?c=d&e#f"
    ended = make_timer(tenant, timer_id, -120, status="Succeeded")
    live = make_timer(tenant, timer_id)
    make_timer(tenant, "another", 5)
    (link,) = re.findall(r'class="name"><a class="break" href="([^"]*)"', get_page(viewer, id="a/"))
    page = viewer.get(unescape(link)).content.decode()
    for call in (live, ended):
        assert f'href="/calls/{tenant.tenant_id}/{call.service_call_id}/"' in page
    assert page.count('data-label="Call"') == 2
    assert "&quot;order&quot;: 17" in page
    assert (at_noon + timedelta(hours=1)).strftime("%Y-%m-%d %H:%M") in page
    assert "Open its call" in page


def test_a_timer_that_has_ended_is_shown_as_such(viewer: Client, tenant: Tenant) -> None:
    make_timer(tenant, "gone", status="Failed")
    page = get_details(viewer, tenant.tenant_id, "gone").content.decode()
    assert "The id can be used again." in page
    assert "Open its last call" in page


def test_what_is_no_timer_of_the_tenant_is_not_found(
    viewer: Client, tenant: Tenant, intruder: Tenant
) -> None:
    make_timer(tenant, "mine")
    assert get_details(viewer, tenant.tenant_id, "mine").status_code == 200
    assert get_details(viewer, intruder.tenant_id, "mine").status_code == 404
    assert get_details(viewer, tenant.tenant_id, "mine", "blue").status_code == 404
    assert get_details(viewer, new_id(), "mine").status_code == 404
    assert viewer.get("/timers/timer/", HTTP_ACCEPT="text/html").status_code == 400

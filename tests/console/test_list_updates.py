"""The list refreshes its counts and its rows in place, and never inserts a row by itself."""

from __future__ import annotations

import re
from html import unescape

import pytest
from django.test import Client

from eventservice.db.now import pin_time
from eventservice.tenants.models import Tenant
from orchestration.models import ServiceCall
from tests.console.call_list import get_list_page, make_call, read_chips, squeeze
from tests.factories import NOON

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]


def read_updates_url(page: str) -> str:
    (found,) = re.findall(r'hx-post="(/calls/look/[^"]*)"', page)
    return unescape(found)


def list_shown_keys(page: str) -> list[str]:
    return re.findall(r'name="shown" value="([^"]*)"', page)


def fetch_updates(client: Client, page: str) -> str:
    response = client.post(read_updates_url(page), {"shown": list_shown_keys(page)}, HTTP_HX_REQUEST="true")
    assert response.status_code == 200
    return squeeze(response.content.decode())


def test_new_calls_are_counted_and_not_inserted(viewer: Client, tenant: Tenant) -> None:
    make_call(tenant, -5, name="old", tags=("x",))
    page = get_list_page(viewer, "tag=x")
    assert "new — show" not in fetch_updates(viewer, page)
    make_call(tenant, 1, name="fresh", tags=("x",))
    make_call(tenant, 1, name="other")
    part = fetch_updates(viewer, page)
    assert "1 new — show" in part
    assert 'href="/calls/?tag=x">1 new' in part
    assert read_chips(part)["Scheduled"] == "2"
    assert "fresh" not in part
    # The next update counts from the same moment.
    assert read_updates_url(part) == read_updates_url(page)


def test_the_updates_tell_how_many_calls_match(operator: Client, tenant: Tenant) -> None:
    """The form that acts on all matching calls names this number."""
    make_call(tenant, -5, tags=("x",))
    page = get_list_page(operator, "tag=x")
    assert "All matching calls (1)" in page
    assert 'data-total="1"' in page
    make_call(tenant, 1, tags=("x",))
    make_call(tenant, 1)
    part = fetch_updates(operator, page)
    assert 'data-total="2"' in part
    assert read_chips(part)["All"] == "2"


def test_a_row_is_refreshed_in_place(viewer: Client, tenant: Tenant) -> None:
    call = make_call(tenant, -5)
    page = get_list_page(viewer, "status=Scheduled")
    ServiceCall.across_tenants.filter(service_call_id=call.service_call_id).update(
        status="Canceled", finished_at=NOON
    )
    part = fetch_updates(viewer, page)
    state = part[part.index(f'id="state-{call.service_call_id}" hx-swap-oob="true">') :]
    assert '<span class="pill canceled">' in state[:300]
    assert f'id="execution-{call.service_call_id}" hx-swap-oob="true">' in part
    assert "Canceled <time" in part
    assert read_chips(part)["Scheduled"] == "0"


def test_ended_calls_are_not_refreshed(viewer: Client, tenant: Tenant) -> None:
    for status in ("Scheduled", "Running", "Succeeded", "Failed", "Canceled"):
        make_call(tenant, -5, status=status)
    assert len(list_shown_keys(get_list_page(viewer))) == 2


def test_an_empty_list_is_refreshed_too(viewer: Client, tenant: Tenant) -> None:
    page = get_list_page(viewer)
    make_call(tenant, 1)
    assert "1 new — show" in fetch_updates(viewer, page)


def test_a_call_submitted_just_before_the_page_is_not_new(viewer: Client, tenant: Tenant) -> None:
    make_call(tenant, 0)
    page = get_list_page(viewer)
    with pin_time(NOON.replace(hour=13)):
        assert "new — show" not in fetch_updates(viewer, page)


@pytest.mark.parametrize("shown_ids", ["x", "a/b", "/", "00000000-0000-0000-0000-000000000001/" * 2])
def test_malformed_ids_are_ignored(viewer: Client, tenant: Tenant, shown_ids: str) -> None:
    response = viewer.post(read_updates_url(get_list_page(viewer)), {"shown": [shown_ids]})
    assert response.status_code == 200
    assert b"hx-swap-oob" not in response.content


def test_an_invalid_query_is_refused(viewer: Client) -> None:
    for query in ("", "since=yesterday", "since=2026-03-01T12:00:00Z&from=x"):
        assert viewer.post(f"/calls/look/?{query}", HTTP_HX_REQUEST="true").status_code == 400


def test_updates_require_a_session(outsider: Client) -> None:
    response = outsider.post("/calls/look/?since=2026-03-01T12:00:00Z", HTTP_HX_REQUEST="true")
    assert (response.status_code, response["HX-Redirect"]) == (401, "/login/")

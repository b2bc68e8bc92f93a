"""The live part: it renews counts and the rows on show, each in its place, and brings no row in by itself."""

from __future__ import annotations

import re
from html import unescape

import pytest
from django.test import Client

from eventservice.db.now import pin_time
from eventservice.tenants.models import Tenant
from orchestration.models import ServiceCall
from tests.conftest import NOON
from tests.console.status_rows import chips, make_call, shown

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]


def address(page: str) -> str:
    (found,) = re.findall(r'hx-post="(/calls/look/[^"]*)"', page)
    return unescape(found)


def on_show(page: str) -> list[str]:
    return re.findall(r'name="shown" value="([^"]*)"', page)


def look(client: Client, page: str) -> str:
    response = client.post(address(page), {"shown": on_show(page)}, HTTP_HX_REQUEST="true")
    assert response.status_code == 200
    return str(response.content.decode())


def test_what_is_new_is_counted_and_not_put_in(viewer: Client, tenant: Tenant) -> None:
    make_call(tenant, -5, name="old", tags=("x",))
    page = shown(viewer, "tag=x")
    assert "new — show" not in look(viewer, page)
    make_call(tenant, 1, name="fresh", tags=("x",))
    make_call(tenant, 1, name="other")
    part = look(viewer, page)
    assert "1 new — show" in part
    assert 'href="/calls/?tag=x">1 new' in part
    assert chips(part)["Scheduled"] == "2"
    assert "fresh" not in part
    # And it goes on from the same moment.
    assert address(part) == address(page)


def test_a_row_on_show_is_renewed_in_its_place(viewer: Client, tenant: Tenant) -> None:
    call = make_call(tenant, -5)
    page = shown(viewer, "status=Scheduled")
    ServiceCall.across_tenants.filter(service_call_id=call.service_call_id).update(
        status="Canceled", finished_at=NOON
    )
    part = look(viewer, page)
    assert f'id="state-{call.service_call_id}" hx-swap-oob="true"><span class="pill canceled">' in part
    assert f'id="execution-{call.service_call_id}" hx-swap-oob="true">' in part
    assert "Canceled <time" in part
    assert chips(part)["Scheduled"] == "0"


def test_what_has_ended_is_not_asked_for_again(viewer: Client, tenant: Tenant) -> None:
    for status in ("Scheduled", "Running", "Succeeded", "Failed", "Canceled"):
        make_call(tenant, -5, status=status)
    assert len(on_show(shown(viewer))) == 2


def test_an_empty_list_looks_too(viewer: Client, tenant: Tenant) -> None:
    page = shown(viewer)
    make_call(tenant, 1)
    assert "1 new — show" in look(viewer, page)


def test_a_call_submitted_just_before_the_page_is_not_new(viewer: Client, tenant: Tenant) -> None:
    make_call(tenant, 0)
    page = shown(viewer)
    with pin_time(NOON.replace(hour=13)):
        assert "new — show" not in look(viewer, page)


@pytest.mark.parametrize("shown_ids", ["x", "a/b", "/", "00000000-0000-0000-0000-000000000001/" * 2])
def test_ids_that_are_none_are_passed_over(viewer: Client, tenant: Tenant, shown_ids: str) -> None:
    response = viewer.post(address(shown(viewer)), {"shown": [shown_ids]})
    assert response.status_code == 200
    assert b"hx-swap-oob" not in response.content


def test_a_wrong_address_is_refused(viewer: Client) -> None:
    for query in ("", "since=yesterday", "since=2026-03-01T12:00:00Z&from=x"):
        assert viewer.post(f"/calls/look/?{query}", HTTP_HX_REQUEST="true").status_code == 400


def test_it_takes_a_session(outsider: Client) -> None:
    response = outsider.post("/calls/look/?since=2026-03-01T12:00:00Z", HTTP_HX_REQUEST="true")
    assert (response.status_code, response["HX-Redirect"]) == (401, "/login/")

"""Too many tenants for one list: those with matching calls are listed, or offered as a choice."""

from __future__ import annotations

import re
from html import unescape

import pytest
from django.test import Client

from eventservice.console.base import tenant_select
from eventservice.console.calls import list_query
from eventservice.tenants.directory import create_tenant, declare_namespace
from eventservice.tenants.models import Tenant
from tests.console.call_list import get_list_page, make_call, read_chips, read_names
from tests.console.test_list_updates import fetch_updates, read_updates_url

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]


@pytest.fixture(autouse=True)
def calls(tenant: Tenant, intruder: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Create three tenants, one without calls, where a list has room for one."""
    monkeypatch.setattr(list_query, "MAX_TENANTS", 1)
    create_tenant("idle")
    declare_namespace(intruder.tenant_id, "blue", 4)
    make_call(tenant, 1, name="a", status="Failed", tags=("x",), host="one.test")
    make_call(tenant, 2, name="b", host="two.test")
    make_call(intruder, 3, name="c", tags=("y", "favorite"), host="one.test", namespace="blue")


def read_offers(page: str) -> dict[str, tuple[str, str | None]]:
    """Return the offered tenants, each with its URL and its count."""
    (nav,) = re.findall(r'<nav class="chips" aria-label="Tenants">(.*?)</nav>', page, re.DOTALL)
    found = re.findall(r'href="([^"]*)">\s*([^<]*?)\s*(?:<span class="count">([^<]*)</span>\s*)?</a>', nav)
    return {name: (unescape(where), count or None) for where, name, count in found}


MATCHES = {
    "status=Failed": "a",
    "status=Failed&status=Succeeded&from=2026-03-01T13:00Z&to=2026-03-01T14:00Z": "a",
    "to=2026-03-01T13:03Z": "ba",
    "tag=x": "a",
    "favorites=1": "c",
    "name=c": "c",
    "host=two.test": "b",
    "namespace=blue": "c",
    "by=submitted&from=2026-03-01T12:03Z": "c",
    "host=one.test&tag=y": "c",
    "status=Succeeded": "",
    "host=two.test&tag=y": "",
}


@pytest.mark.parametrize("query", MATCHES)
def test_a_filter_that_matches_few_tenants_needs_no_choice(viewer: Client, query: str) -> None:
    page = get_list_page(viewer, query)
    assert "".join(read_names(page)) == MATCHES[query]
    assert ("no other tenant has matching calls" in page) == bool(MATCHES[query])


def test_a_filter_that_matches_many_tenants_offers_the_first_of_them(viewer: Client, tenant: Tenant) -> None:
    page = get_list_page(viewer, "status=Failed&status=Scheduled&limit=10")
    assert "Choose a tenant" in page
    assert read_names(page) == []
    ((name, (where, count)),) = read_offers(page).items()
    assert (name, count) == ("acme", "2")
    assert where == f"/calls/?status=Failed&status=Scheduled&limit=10&tenant={tenant.tenant_id}"
    assert set(read_names(get_list_page(viewer, where.partition("?")[2]))) == {"a", "b"}


@pytest.mark.parametrize(("query", "count"), [("", "2"), ("host=one.test&from=2026-03-01", None)])
def test_offers_have_counts_if_one_index_can_count(viewer: Client, query: str, count: str | None) -> None:
    assert [shown_count for _, shown_count in read_offers(get_list_page(viewer, query)).values()] == [count]


def test_updates_count_the_same_tenants(viewer: Client, intruder: Tenant) -> None:
    page = get_list_page(viewer, "status=Failed")
    part = fetch_updates(viewer, page)
    assert read_chips(part) == read_chips(page)
    assert read_chips(part)["Failed"] == "1"
    # Now two tenants match, which is more than the list has room for.
    make_call(intruder, 4, status="Failed")
    assert viewer.post(read_updates_url(page), HTTP_HX_REQUEST="true").status_code == 400


def test_exports_and_bulk_actions_cover_the_same_tenants_or_are_refused(
    viewer: Client, operator: Client
) -> None:
    lines = viewer.get("/calls/export.csv?status=Failed").getvalue().decode().splitlines()
    assert [line.split(",")[1] for line in lines[1:]] == ["acme"]
    assert viewer.get("/calls/export.csv").status_code == 400
    page = operator.get("/calls/bulk/?do=cancel&name=c", HTTP_ACCEPT="text/html").content.decode()
    assert "Cancel 1 call?" in page
    assert operator.get("/calls/bulk/?do=cancel", HTTP_ACCEPT="text/html").status_code == 400


def test_the_select_has_the_first_tenants_and_the_chosen_one(
    viewer: Client, intruder: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenant_select, "MAX_OPTIONS", 2)
    page = get_list_page(viewer, f"tenant={intruder.tenant_id}")
    assert read_names(page) == ["c"]
    assert re.findall(r'<option value="[0-9a-f-]{36}"[^>]*>(\w+)</option>', page) == [
        "acme",
        "idle",
        "intruder",
    ]
    assert "Tenant: intruder" in page

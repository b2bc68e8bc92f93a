"""Where there are too many tenants for one list, those are listed that have such calls, or offered to be chosen from."""

from __future__ import annotations

import re
from html import unescape

import pytest
from django.test import Client

from eventservice.console.base import tenant_select
from eventservice.console.calls import list_query
from eventservice.tenants.directory import create_tenant, declare_namespace
from eventservice.tenants.models import Tenant
from tests.console.status_rows import chips, make_call, names, shown
from tests.console.test_status_look import address, look

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]


@pytest.fixture(autouse=True)
def calls(tenant: Tenant, intruder: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three tenants, of which one has no call, where a list has room for one."""
    monkeypatch.setattr(list_query, "MOST_TENANTS", 1)
    monkeypatch.setattr("eventservice.console.calls.list_page.MOST_TENANTS", 1)
    create_tenant("idle")
    declare_namespace(intruder.tenant_id, "blue", 4)
    make_call(tenant, 1, name="a", status="Failed", tags=("x",), host="one.test")
    make_call(tenant, 2, name="b", host="two.test")
    make_call(intruder, 3, name="c", tags=("y", "favorite"), host="one.test", namespace="blue")


def offered(page: str) -> dict[str, tuple[str, str | None]]:
    """Names, each with its address and its count."""
    (chosen_from,) = re.findall(r'<nav class="chips" aria-label="Tenants">(.*?)</nav>', page, re.DOTALL)
    found = re.findall(r'href="([^"]*)">([^<]*?)(?: <span class="count">([^<]*)</span>)?</a>', chosen_from)
    return {name: (unescape(where), count or None) for where, name, count in found}


OF_ONE = {
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


@pytest.mark.parametrize("query", OF_ONE)
def test_a_filter_that_few_tenants_pass_needs_no_tenant_chosen(viewer: Client, query: str) -> None:
    page = shown(viewer, query)
    assert "".join(names(page)) == OF_ONE[query]
    assert ("no other has calls that pass these filters" in page) == bool(OF_ONE[query])


def test_a_filter_that_many_pass_offers_the_first_of_them_each_with_its_list(
    viewer: Client, tenant: Tenant
) -> None:
    page = shown(viewer, "status=Failed&status=Scheduled&limit=10")
    assert "Choose a tenant" in page
    assert names(page) == []
    ((name, (where, count)),) = offered(page).items()
    assert (name, count) == ("acme", "2")
    assert where == f"/calls/?status=Failed&status=Scheduled&limit=10&tenant={tenant.tenant_id}"
    assert set(names(shown(viewer, where.partition("?")[2]))) == {"a", "b"}


@pytest.mark.parametrize(("query", "count"), [("", "2"), ("host=one.test&from=2026-03-01", None)])
def test_counts_are_shown_where_one_index_knows_them(viewer: Client, query: str, count: str | None) -> None:
    assert [shown_count for _, shown_count in offered(shown(viewer, query)).values()] == [count]


def test_the_live_part_counts_the_same_tenants(viewer: Client, intruder: Tenant) -> None:
    page = shown(viewer, "status=Failed")
    part = look(viewer, page)
    assert chips(part) == chips(page)
    assert chips(part)["Failed"] == "1"
    # Now two have some, which is more than this list has room for.
    make_call(intruder, 4, status="Failed")
    assert viewer.post(address(page), HTTP_HX_REQUEST="true").status_code == 400


def test_a_file_or_a_bulk_is_of_those_tenants_or_refused(viewer: Client, operator: Client) -> None:
    lines = viewer.get("/calls/export.csv?status=Failed").getvalue().decode().splitlines()
    assert [line.split(",")[1] for line in lines[1:]] == ["acme"]
    assert viewer.get("/calls/export.csv").status_code == 400
    page = operator.get("/calls/bulk/?do=cancel&name=c", HTTP_ACCEPT="text/html").content.decode()
    assert "Cancel 1 call?" in page
    assert operator.get("/calls/bulk/?do=cancel", HTTP_ACCEPT="text/html").status_code == 400


def test_a_page_offers_so_many_tenants_and_the_chosen_one(
    viewer: Client, intruder: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenant_select, "MAX_OPTIONS", 2)
    page = shown(viewer, f"tenant={intruder.tenant_id}")
    assert names(page) == ["c"]
    assert re.findall(r'<option value="[0-9a-f-]{36}"[^>]*>(\w+)</option>', page) == [
        "acme",
        "idle",
        "intruder",
    ]
    assert "Tenant: intruder" in page

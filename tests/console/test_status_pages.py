"""Pages: on and back again, with their place in the list, and what comes in meanwhile moves none of them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from eventservice.console.calls import list_page
from eventservice.tenants.models import Tenant
from orchestration.models import ServiceCall, ServiceCallTag
from orchestration.queries import call_lists
from orchestration.queries.call_lists import CallFilter, Order, list_calls
from tests.conftest import NOON
from tests.console.status_rows import link, make_call, names, pager, shown

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]


@pytest.fixture(autouse=True)
def calls(tenant: Tenant, intruder: Tenant) -> None:
    """25, of which some were submitted, and are due, at the same moment."""
    for n in range(25):
        make_call(tenant if n % 3 else intruder, n // 2 - 60, name=f"{n:02d}", tags=("x",) if n % 2 else ())


def go(client: Client, page: str, rel: str) -> str:
    address = link(page, rel)
    assert address, f"no {rel}"
    return shown(client, address.partition("?")[2])


@pytest.mark.parametrize("few", [0, 5000], ids=["walks", "few"])
@pytest.mark.parametrize("query", ["", "tag=x&", "status=Scheduled&", "host=example.test&"])
@pytest.mark.parametrize("sort", ["submittedAt", "-submittedAt", "dueAt", "-dueAt"])
def test_a_walk_on_and_back_shows_every_call_once(
    viewer: Client, query: str, sort: str, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_lists, "MAX_FEW", few)
    everything = names(shown(viewer, f"{query}sort={sort}"))
    page = shown(viewer, f"{query}sort={sort}&limit=10")
    there = [page]
    while link(page, "next"):
        page = go(viewer, page, "next")
        there.append(page)
    assert [name for one in there for name in names(one)] == everything
    back = [page]
    while link(page, "prev"):
        page = go(viewer, page, "prev")
        back.append(page)
    assert [(names(one), pager(one)) for one in back[::-1]] == [(names(one), pager(one)) for one in there]


def test_a_page_says_its_place(viewer: Client) -> None:
    page = shown(viewer, "limit=10")
    places = [pager(page)]
    for _ in range(2):
        page = go(viewer, page, "next")
        places.append(pager(page))
    assert places == ["1–10 of 25", "11–20 of 25", "21–25 of 25"]
    assert link(page, "next") is None
    assert link(shown(viewer, "limit=10"), "prev") is None


def test_many_are_not_counted_exactly(viewer: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (
        "eventservice.db.bounded_count",
        "orchestration.queries.counts",
        "eventservice.console.calls.list_page",
    ):
        monkeypatch.setattr(f"{module}.MAX_COUNTED", 20)
    page = shown(viewer, "limit=10")
    assert pager(page) == "1–10 of 20+"
    assert pager(go(viewer, go(viewer, page, "next"), "next")) == "21–25 of 25"


def test_what_comes_in_meanwhile_moves_no_page(viewer: Client, tenant: Tenant) -> None:
    everything = names(shown(viewer))
    first = shown(viewer, "limit=10")
    make_call(tenant, name="new")
    second = go(viewer, first, "next")
    assert names(second) == everything[10:20]
    assert pager(second).startswith("11–20 of")
    back = go(viewer, second, "prev")
    assert names(back) == everything[:10]
    assert pager(back).startswith("1–10 of")
    # From there one step further is the list as it is by now.
    assert names(go(viewer, back, "prev"))[0] == "new"


def test_a_page_whose_calls_are_gone_leads_to_the_first(viewer: Client) -> None:
    page = shown(viewer, "limit=10")
    ServiceCallTag.across_tenants.all().delete()
    ServiceCall.across_tenants.all().delete()
    page = go(viewer, page, "next")
    assert "Nothing further" in page
    assert 'href="/calls/?limit=10"' in page


def test_a_cursor_is_good_for_its_own_list_only(viewer: Client) -> None:
    address = link(shown(viewer, "limit=10&tag=x"), "next")
    assert address
    query = address.partition("?")[2]
    assert "not of a page of this list" in shown(viewer, query.replace("tag=x", "tag=y"), status=400)


def test_the_page_asks_no_more_for_more_rows(viewer: Client) -> None:
    def queries(limit: int) -> int:
        with CaptureQueriesContext(connection) as seen:
            shown(viewer, f"limit={limit}")
        return len(seen)

    queries(10)
    assert queries(25) == queries(10)
    assert queries(25) <= 16


def test_the_page_before_a_position_is_the_page_that_ends_there(tenant: Tenant, intruder: Tenant) -> None:
    wanted = [CallFilter(one.tenant_id) for one in (tenant, intruder)]
    every = list_calls(wanted, Order(), 100)
    assert (every.preceding, every.following) == (None, None)
    position = (NOON - timedelta(minutes=55), every.calls[0].service_call_id)
    before = list_calls(wanted, Order(), 5, before=position)
    after = list_calls(wanted, Order(), 100, after=before.following)
    index = every.calls.index(before.calls[0])
    assert before.calls + after.calls == every.calls[index:]
    assert all(call.submitted_at >= position[0] for call in before.calls)


def test_every_count_of_records_can_be_chosen(viewer: Client) -> None:
    page = shown(viewer, "limit=7")
    for limit in (*list_page.LIMITS, 7):
        assert f">{limit}</option>" in page
    assert "<option selected>7</option>" in page

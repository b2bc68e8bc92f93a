"""Lists can be paged in both directions. Pages show their position, and new calls do not move them."""

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
from tests.console.call_list import find_link, get_list_page, make_call, read_names, read_pager
from tests.factories import NOON

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]


@pytest.fixture(autouse=True)
def calls(tenant: Tenant, intruder: Tenant) -> None:
    """Create 25 calls, some of them submitted and due at the same moment."""
    for n in range(25):
        make_call(tenant if n % 3 else intruder, n // 2 - 60, name=f"{n:02d}", tags=("x",) if n % 2 else ())


def follow(client: Client, page: str, rel: str) -> str:
    address = find_link(page, rel)
    assert address, f"no {rel}"
    return get_list_page(client, address.partition("?")[2])


@pytest.mark.parametrize("few", [0, 5000], ids=["walks", "few"])
@pytest.mark.parametrize("query", ["", "tag=x&", "status=Scheduled&", "host=example.test&"])
@pytest.mark.parametrize("sort", ["submittedAt", "-submittedAt", "dueAt", "-dueAt"])
def test_paging_in_both_directions_shows_every_call_once(
    viewer: Client, query: str, sort: str, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_lists, "MAX_SORTED_IDS", few)
    everything = read_names(get_list_page(viewer, f"{query}sort={sort}"))
    page = get_list_page(viewer, f"{query}sort={sort}&limit=10")
    there = [page]
    while find_link(page, "next"):
        page = follow(viewer, page, "next")
        there.append(page)
    assert [name for one in there for name in read_names(one)] == everything
    back = [page]
    while find_link(page, "prev"):
        page = follow(viewer, page, "prev")
        back.append(page)
    assert [(read_names(one), read_pager(one)) for one in back[::-1]] == [
        (read_names(one), read_pager(one)) for one in there
    ]


def test_a_page_shows_its_position(viewer: Client) -> None:
    page = get_list_page(viewer, "limit=10")
    places = [read_pager(page)]
    for _ in range(2):
        page = follow(viewer, page, "next")
        places.append(read_pager(page))
    assert places == ["1–10 of 25", "11–20 of 25", "21–25 of 25"]
    assert find_link(page, "next") is None
    assert find_link(get_list_page(viewer, "limit=10"), "prev") is None


def test_many_calls_are_not_counted_exactly(viewer: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (
        "eventservice.db.bounded_count",
        "orchestration.queries.counts",
        "eventservice.console.calls.list_page",
    ):
        monkeypatch.setattr(f"{module}.MAX_COUNTED", 20)
    page = get_list_page(viewer, "limit=10")
    assert read_pager(page) == "1–10 of 20+"
    assert read_pager(follow(viewer, follow(viewer, page, "next"), "next")) == "21–25 of 25"


def test_new_calls_do_not_move_pages(viewer: Client, tenant: Tenant) -> None:
    everything = read_names(get_list_page(viewer))
    first = get_list_page(viewer, "limit=10")
    make_call(tenant, name="new")
    second = follow(viewer, first, "next")
    assert read_names(second) == everything[10:20]
    assert read_pager(second).startswith("11–20 of")
    back = follow(viewer, second, "prev")
    assert read_names(back) == everything[:10]
    assert read_pager(back).startswith("1–10 of")
    # Before the first page are the calls that came in since.
    assert read_names(follow(viewer, back, "prev"))[0] == "new"


def test_an_empty_page_leads_to_the_first(viewer: Client) -> None:
    page = get_list_page(viewer, "limit=10")
    ServiceCallTag.across_tenants.all().delete()
    ServiceCall.across_tenants.all().delete()
    page = follow(viewer, page, "next")
    assert "No calls on this page" in page
    assert 'href="/calls/?limit=10"' in page


def test_a_cursor_is_valid_for_its_own_list_only(viewer: Client) -> None:
    address = find_link(get_list_page(viewer, "limit=10&tag=x"), "next")
    assert address
    query = address.partition("?")[2]
    assert "This link is for a list with other filters" in get_list_page(
        viewer, query.replace("tag=x", "tag=y"), status=400
    )


def test_more_rows_need_no_more_queries(viewer: Client) -> None:
    def queries(limit: int) -> int:
        with CaptureQueriesContext(connection) as seen:
            get_list_page(viewer, f"limit={limit}")
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


def test_every_page_size_can_be_chosen(viewer: Client) -> None:
    page = get_list_page(viewer, "limit=7")
    for limit in (*list_page.PAGE_SIZES, 7):
        assert f">{limit}</option>" in page
    assert "<option selected>7</option>" in page

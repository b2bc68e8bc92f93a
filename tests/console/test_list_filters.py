"""The URL of a list is its filter. Matching calls are listed, and invalid filters are reported at their fields."""

from __future__ import annotations

import itertools
import re
from html import unescape
from urllib.parse import parse_qs, urlsplit

import pytest
from django.http import QueryDict
from django.test import Client

from eventservice.console.calls.list_query import parse_list_query
from eventservice.tenants.directory import create_tenant
from eventservice.tenants.models import Tenant
from orchestration.models import ServiceCall, ServiceCallTag
from orchestration.queries import call_lists
from tests.console.call_list import find_link, get_list_page, make_call, read_chips, read_names

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]


@pytest.fixture(autouse=True)
def calls(tenant: Tenant, intruder: Tenant) -> None:
    make_call(tenant, 1, name="a", status="Failed", tags=("x",), host="one.test")
    make_call(tenant, 2, name="b", tags=("x", "y"), host="two.test", namespace="blue")
    make_call(intruder, 3, name="c", status="Failed", tags=("y",), host="one.test")
    make_call(intruder, 4, name="d", status="Succeeded", host="two.test")


FILTERS = {
    "status=Failed": {"a", "c"},
    "status=Failed&status=Succeeded": {"a", "c", "d"},
    "tag=x": {"a", "b"},
    "tag=x&tag=y": {"b"},
    "host=ONE.test": {"a", "c"},
    "name=d": {"d"},
    "name=%22d%22": {"d"},
    "host=one.t": {"a", "c"},
    "host=%22two.test%22": {"b", "d"},
    "host=%22two%22": set(),
    "host=ne.test": set(),
    "namespace=blue": {"b"},
    "from=2026-03-01T13:03:00Z": {"c", "d"},
    "from=2026-03-01T13:02&to=2026-03-01T13:04": {"b", "c"},
    "from=2026-03-01T14:03&zone=Europe/Berlin": {"c", "d"},
    "by=submitted&to=2026-03-01T13:02:00%2B01:00": {"a"},
    "from=2026-03-02": set(),
    "tenant=&id=&name=&host=+&tag=&from=": {"a", "b", "c", "d"},
}


@pytest.mark.parametrize("few", [0, 5000], ids=["walks", "few"])
def test_matching_calls_are_listed(viewer: Client, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_lists, "MAX_SORTED_IDS", few)
    for query, expected in FILTERS.items():
        assert set(read_names(get_list_page(viewer, query))) == expected, query
    for (one, first), (other, second) in itertools.combinations(FILTERS.items(), 2):
        if {part.split("=")[0] for part in one.split("&")} & {p.split("=")[0] for p in other.split("&")}:
            continue
        if {"by=submitted"} & {*one.split("&"), *other.split("&")}:
            continue  # it changes the meaning of both dates
        # Without the page, whose rendering takes most of the time.
        parsed = parse_list_query(QueryDict(f"{one}&{other}"))
        assert not parsed.errors
        assert {call.name for call in parsed.fetch_page().calls} == first & second, (one, other)


@pytest.mark.parametrize(
    ("sort", "expected"), [("submittedAt", "abcd"), ("-submittedAt", "dcba"), ("dueAt", "abcd"), ("-dueAt", "dcba")]
)  # fmt: skip
def test_the_list_is_sorted(viewer: Client, sort: str, expected: str) -> None:
    page = get_list_page(viewer, f"sort={sort}")
    assert "".join(read_names(page)) == expected
    sorts = re.findall(r'aria-sort="(\w+)"', page)
    assert sorts[sort.endswith("dueAt")] == ("descending" if sort.startswith("-") else "ascending")


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("from=yesterday", 'id="w-from">From must be a time, such as'),
        ("to=2026-02-30T00:00Z", 'id="w-to">To must be a time, such as'),
        ("from=2026-03-02T00:00Z&to=2026-03-01T00:00Z", 'id="w-to">To must be later than From'),
        ("tenant=00000000-0000-0000-0000-000000000001", 'id="w-tenant">Tenant does not exist'),
        ("tenant=acme", 'id="w-tenant">Tenant must be a UUID'),
        ("name=" + "n" * 2001, 'id="w-name">Name must be a string'),
        ("&".join(f"tag={n}" for n in range(21)), 'id="w-tag">Tag must be given at most 20 times'),
        ("from=0001-01-01", 'id="w-from">From must be a time, such as'),
        ("from=2026-03-01&zone=Europe/Atlantis", "<p>zone must be a time zone"),
        ("status=Sleeping", "<p>status must be one of"),
        ("limit=201", "<p>limit must be a whole number"),
        ("stauts=Failed", "<p>stauts is not a known filter"),
        ("cursor=x", "This link is for a list with other filters"),
    ],
)
def test_an_invalid_filter_is_reported_and_does_not_look_like_an_empty_list(
    viewer: Client, query: str, message: str
) -> None:
    page = get_list_page(viewer, query, status=400)
    assert message in page
    assert "<tbody>" not in page
    assert 'class="empty"' not in page
    assert 'role="alert"' in page


def test_an_invalid_date_can_be_corrected(viewer: Client) -> None:
    page = get_list_page(viewer, "from=yesterday&name=a", status=400)
    assert 'name="from" value="yesterday" type="text" aria-invalid="true"' in page
    assert 'name="name" value="a"' in page


def test_each_active_filter_can_be_removed_alone(viewer: Client) -> None:
    page = get_list_page(viewer, "name=b&tag=x&tag=y&status=Scheduled&sort=dueAt&limit=10")
    found = re.findall(r'href="([^"]*)" title="Remove the filter (\w+: \w+)…?"', page)
    without = {name: parse_qs(urlsplit(unescape(address)).query) for address, name in found}
    kept = {"status": ["Scheduled"], "sort": ["dueAt"], "limit": ["10"]}
    assert without == {
        "Name: b": {**kept, "tag": ["x", "y"]},
        "Tag: x": {**kept, "name": ["b"], "tag": ["y"]},
        "Tag: y": {**kept, "name": ["b"], "tag": ["x"]},
    }


def test_the_form_keeps_filters_without_a_field(viewer: Client) -> None:
    page = get_list_page(viewer, "status=Failed&favorites=1&tag=x&sort=dueAt&limit=10")
    form = page[page.index('<form class="body"') : page.index("</form>", page.index('<form class="body"'))]
    hidden = re.findall(r'type="hidden" name="(\w+)" value="(\w+)"', form)
    assert sorted(hidden) == sorted(
        [
            ("status", "Failed"),
            ("favorites", "1"),
            ("sort", "dueAt"),
            ("limit", "10"),
            ("tag", "x"),
            ("zone", "UTC"),  # that of the form's own times
        ]
    )


def test_a_chip_selects_its_status_and_a_second_click_removes_it(viewer: Client) -> None:
    page = get_list_page(viewer, "tag=x&status=Failed")
    addresses = {
        name: unescape(address) for name, address in re.findall(r'id="chip-(\w+)" href="([^"]*)"', page)
    }
    assert addresses["Failed"] == "/calls/?tag=x"
    assert addresses["Succeeded"] == "/calls/?tag=x&status=Succeeded"
    assert addresses["favorites"] == "/calls/?tag=x&status=Failed&favorites=1"
    assert read_chips(page)["Failed"] == "1"


def test_an_empty_result_is_not_called_an_empty_list(viewer: Client) -> None:
    page = get_list_page(viewer, "name=nobody")
    assert "No calls match these filters" in page
    assert "Clear filters" in page
    empty = create_tenant("empty").tenant_id
    assert "No calls match these filters" in get_list_page(viewer, f"tenant={empty}")


def test_a_name_or_a_host_is_found_by_its_beginning(viewer: Client, tenant: Tenant) -> None:
    for name in ("Sync stock", "Sync prices", "Sync", "sync stock", "Synchronize", "Resync stock", "Sync%"):
        make_call(tenant, 9, name=name)
    assert set(read_names(get_list_page(viewer, "name=Sync"))) == {
        "Sync stock", "Sync prices", "Sync", "Synchronize", "Sync%"
    }  # fmt: skip
    assert read_names(get_list_page(viewer, "name=Sync%25")) == ["Sync%"]
    page = get_list_page(viewer, "name=%22Sync%22")
    assert read_names(page) == ["Sync"]
    assert "Remove the filter Name: &quot;Sync&quot;" in page
    assert "Remove the filter Name: Sync s…" in get_list_page(viewer, "name=Sync+s")


@pytest.mark.parametrize("some", [0, 2, 20_000], ids=["walked", "walked for one", "sorted"])
@pytest.mark.parametrize("sort", ["submittedAt", "-submittedAt", "dueAt", "-dueAt"])
def test_the_pages_of_a_frequent_prefix_are_complete_and_in_order(
    viewer: Client, tenant: Tenant, some: int, sort: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_lists, "MAX_SORTED_IDS", 0)
    monkeypatch.setattr(call_lists, "MAX_SORTED_OF_PREFIX", some)
    for minute in range(7):
        make_call(tenant, 10 + minute, name=f"Sync {6 - minute}", tags=("x",))
        make_call(tenant, 10 + minute, name=f"other {minute}")
    seen: list[str] = []
    address: str | None = f"/calls/?name=Sync&tag=x&limit=3&sort={sort}"
    while address:
        page = get_list_page(viewer, address.partition("?")[2])
        seen += read_names(page)
        address = find_link(page, "next")
    assert seen == sorted((f"Sync {n}" for n in range(7)), reverse=not sort.startswith("-"))


def test_an_empty_list_suggests_similar_values(viewer: Client, tenant: Tenant) -> None:
    make_call(tenant, 9, name="Sync stock", tags=("nightly",))
    page = get_list_page(viewer, "name=sync&status=Scheduled")
    assert '<a class="chip" href="/calls/?name=Sync+stock&amp;status=Scheduled">' in page
    assert "tag=x&amp;tag=nightly" in get_list_page(viewer, "tag=x&tag=night")
    assert "match from their beginning" in get_list_page(viewer, "name=nothing+like+it")


def test_an_empty_list_leads_to_the_next_step(viewer: Client, operator: Client) -> None:
    ServiceCallTag.across_tenants.all().delete()
    ServiceCall.across_tenants.all().delete()
    assert "No calls yet" in get_list_page(viewer)
    assert 'href="/calls/new/"' not in get_list_page(viewer)
    assert 'href="/calls/new/"' in get_list_page(operator)
    Tenant.objects.all().delete()
    assert "No tenants yet" in get_list_page(operator)

"""Calls are counted within the filters if an index can do it, and else over all calls; counts never scan a table."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from eventservice.tenants.models import Tenant
from orchestration.queries import call_lists
from orchestration.queries import counts as call_counts
from orchestration.queries.call_lists import CallFilter
from orchestration.queries.counts import count_calls, count_submitted_since
from tests.console.call_list import get_list_page, make_call, read_chips
from tests.factories import NOON

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]


@pytest.fixture(autouse=True)
def calls(tenant: Tenant, intruder: Tenant) -> None:
    for n in range(12):
        status = ("Scheduled", "Failed", "Succeeded")[n % 3]
        make_call(tenant, n, status=status, host="one.test" if n < 6 else "two.test", tags=("x",))
    make_call(intruder, 20, status="Canceled", host="one.test")


def filters(tenant: Tenant, **wanted: Any) -> list[CallFilter]:
    return [CallFilter(tenant.tenant_id, **wanted)]


def test_chips_count_all_tenants_and_one(viewer: Client, tenant: Tenant) -> None:
    everything = {
        "All": "13", "Scheduled": "4", "Retrying": "0", "Running": "0", "Succeeded": "4", "Failed": "4",
    }  # fmt: skip
    assert read_chips(get_list_page(viewer)) == {**everything, "Canceled": "1"}
    assert read_chips(get_list_page(viewer, f"tenant={tenant.tenant_id}")) == {
        **everything,
        "All": "12",
        "Canceled": "0",
    }


def test_chips_count_within_the_other_filters(viewer: Client) -> None:
    page = get_list_page(viewer, "host=one.test&status=Failed")
    assert read_chips(page) == {
        "All": "7", "Scheduled": "2", "Retrying": "0", "Running": "0", "Succeeded": "2", "Failed": "2", "Canceled": "1",
    }  # fmt: skip
    assert "The counts include all calls" not in page


def test_chips_say_so_if_they_count_without_the_other_filters(
    viewer: Client, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_lists, "MAX_SORTED_IDS", 1)
    page = get_list_page(viewer, f"host=one.test&tenant={tenant.tenant_id}")
    assert read_chips(page)["Failed"] == "4"
    assert "The counts include all calls of acme" in page


@pytest.mark.parametrize("few", [0, 5000], ids=["walks", "few"])
def test_the_total_matches_the_list(tenant: Tenant, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_lists, "MAX_SORTED_IDS", few)
    cases: list[tuple[dict[str, Any], int]] = [
        ({}, 12),
        ({"statuses": frozenset({"Failed"})}, 4),
        ({"statuses": frozenset({"Failed", "Running", "Scheduled"})}, 8),
        ({"host": "one.test"}, 6),
        ({"tags": frozenset({"x"})}, 12),
        ({"tags": frozenset({"x", "y"})}, 0),
        ({"name": "call", "host": "two.test"}, 6),
        ({"namespace": "default"}, 12),
        ({"host": "one.test", "statuses": frozenset({"Failed"})}, 2),
        ({"due_from": NOON, "statuses": frozenset({"Failed"})}, 4),
        ({"submitted_from": NOON, "host": "one.test"}, 6),
    ]
    for wanted, expected in cases:
        found = count_calls(filters(tenant, **wanted))
        assert (found.total, found.exact) == (expected, True), wanted


def test_an_unknown_total_is_at_least_the_number_found(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_lists, "MAX_SORTED_IDS", 1)
    monkeypatch.setattr(call_counts, "MAX_ROWS_SCANNED", 6)
    found = count_calls(filters(tenant, host="two.test", statuses=frozenset({"Failed"})))
    assert (found.total, found.exact) == (2, False)


def test_every_count_is_bounded(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_counts, "MAX_COUNTED", 2)
    assert count_calls(filters(tenant)).by_status["Failed"] == 3
    with CaptureQueriesContext(connection) as seen:
        count_calls(filters(tenant, host="one.test"))
        count_calls(filters(tenant))
    counts = [query["sql"] for query in seen if "COUNT(" in query["sql"]]
    assert counts
    assert [sql for sql in counts if sql.count("COUNT(") > sql.count("LIMIT")] == []


def test_calls_of_one_correlation_are_counted(tenant: Tenant) -> None:
    call = make_call(tenant, 30)
    found = count_calls(filters(tenant, correlation_id=call.correlation_id))
    assert (found.total, found.filtered, dict(found.by_status)) == (1, True, {"Scheduled": 1})


def test_matching_calls_submitted_since_count_as_new(tenant: Tenant, intruder: Tenant) -> None:
    calls = filters(tenant) + filters(intruder)
    make_call(intruder, 60, status="Failed")
    make_call(tenant, 61)
    since = NOON.replace(hour=13)
    assert count_submitted_since(calls, since, 10) == 2
    assert count_submitted_since(calls, since, 1) == 1
    assert count_submitted_since(filters(tenant, statuses=frozenset({"Failed"})), since, 10) == 0

"""Lists of the admin are filtered, searched and paged through indexes, and never count more than they need to."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from eventservice.adminsite import change_lists
from eventservice.kernel.ids import new_id
from eventservice.tenants.models import Tenant
from orchestration.models import ServiceCall
from outbox.models import WebhookDelivery, WebhookEndpoint
from tests.console.admin_pages import build_list_url, read_page, read_rows
from tests.factories import (
    EARLIER,
    HttpExecutionFactory,
    NamespaceFactory,
    OutboxEventFactory,
    ServiceCallFactory,
    ServiceCallTagFactory,
    TimerFactory,
)

CALLS = "orchestration_servicecall"


def read_call_names(client: Client, **query: Any) -> list[str]:
    """The names of the listed calls."""
    return [row.split()[0] for row in read_rows(client.get(build_list_url(CALLS, **query)))]


def call(tenant: Tenant, name: str, **columns: Any) -> Any:
    return ServiceCallFactory(tenant_id=tenant.pk, name=name, **columns)


# --- tenants ----------------------------------------------------------------------------------------------------


def test_a_tenant_is_selected_by_default(viewer: Client, tenant: Tenant, intruder: Tenant) -> None:
    call(tenant, "ours")
    call(intruder, "theirs")
    assert read_call_names(viewer) == ["ours"]
    assert read_call_names(viewer, tenant=intruder.pk) == ["theirs"]


def read_heading(page: Any) -> str:
    (found,) = re.findall(r"<h1>(.*?)</h1>", read_page(page))
    return str(found)


def test_the_heading_names_the_tenant_whose_rows_are_listed(
    viewer: Client, tenant: Tenant, intruder: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    call(tenant, "ours")
    assert read_heading(viewer.get(build_list_url(CALLS))) == f"Service calls of {tenant.name}"
    assert (
        read_heading(viewer.get(build_list_url(CALLS, tenant=intruder.pk)))
        == f"Service calls of {intruder.name}"
    )
    monkeypatch.setattr(change_lists, "MAX_TENANT_CHOICES", 1)
    assert (
        read_heading(viewer.get(build_list_url(CALLS, tenant=intruder.pk)))
        == f"Service calls of {intruder.name}"
    )


def test_the_heading_of_a_list_of_all_tenants_names_none(viewer: Client, tenant: Tenant) -> None:
    assert read_heading(viewer.get(build_list_url("outbox_outboxevent"))) == "Outbox events"
    assert (
        read_heading(viewer.get(build_list_url("outbox_outboxevent", tenant=tenant.pk)))
        == f"Outbox events of {tenant.name}"
    )


def test_the_heading_names_the_tenant_that_is_selected_by_default(viewer: Client, tenant: Tenant) -> None:
    assert read_heading(viewer.get(build_list_url("timers_timerschedule"))).endswith(
        f" of {tenant.name}: Scheduled"
    )


def test_the_heading_of_a_search_names_what_was_searched_for(viewer: Client, intruder: Tenant) -> None:
    """Ids are found in every tenant."""
    theirs = call(intruder, "theirs")
    asked = read_heading(viewer.get(build_list_url(CALLS, q=theirs.service_call_id)))
    assert asked == f"Service calls found by “{theirs.service_call_id}”"


def test_no_list_of_one_tenant_offers_to_show_all(viewer: Client, tenant: Tenant, intruder: Tenant) -> None:
    assert "Show all" not in read_page(viewer.get(build_list_url(CALLS)))
    found = read_page(viewer.get(build_list_url(CALLS, q="job", tenant=intruder.pk)))
    assert "Show all" not in found
    assert f'<a href="?tenant={intruder.pk}">Clear the search</a>' in found


def test_a_tenant_without_rows_is_named(viewer: Client, tenant: Tenant, intruder: Tenant) -> None:
    call(intruder, "theirs")
    assert f"No service calls of {tenant.name} yet." in read_page(viewer.get(build_list_url(CALLS)))


def test_times_are_labeled_as_utc(viewer: Client, tenant: Tenant) -> None:
    call(tenant, "ours")
    page = read_page(viewer.get(build_list_url(CALLS)))
    assert "Submitted (UTC)" in page
    assert "Due (UTC)" in page


def test_a_list_without_any_tenant_is_empty_and_says_so(viewer: Client, db: None) -> None:
    assert "No service calls yet." in read_page(viewer.get(build_list_url(CALLS)))


@pytest.mark.parametrize(
    "query",
    [{"tenant": "x"}, {"status": "Lost"}, {"year": "x"}, {"year": "2026", "month": "13"}, {"year": "0"}, {"p": "9" * 9},
     {"year": "9999", "month": "12"}, {"year": "99999"}],
)  # fmt: skip
def test_an_invalid_url_leads_to_the_list(query: dict[str, str], viewer: Client, tenant: Tenant) -> None:
    call(tenant, "ours")
    page = viewer.get(build_list_url(CALLS, **query), follow=True)
    assert page.status_code == 200


# --- filters ----------------------------------------------------------------------------------------------------


def test_calls_are_filtered_by_status_the_latest_due_first(viewer: Client, tenant: Tenant) -> None:
    call(tenant, "early", status="Failed")
    call(tenant, "late", status="Failed", due_at=EARLIER + timedelta(hours=1))
    call(tenant, "fine", status="Succeeded")
    assert read_call_names(viewer, status="Failed") == ["late", "early"]
    assert sorted(read_call_names(viewer)) == ["early", "fine", "late"]


def test_calls_are_filtered_by_namespace_among_the_latest(
    viewer: Client, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    NamespaceFactory(tenant=tenant, name="reports")
    for number in range(4):
        call(tenant, f"r{number}", namespace="reports", submitted_at=EARLIER + timedelta(seconds=number))
    call(tenant, "plain", submitted_at=EARLIER + timedelta(seconds=9))
    assert read_call_names(viewer, namespace="reports") == ["r3", "r2", "r1", "r0"]
    monkeypatch.setattr(change_lists, "MAX_LATEST_ROWS", 3)
    assert read_call_names(viewer, namespace="reports") == ["r3", "r2"]


def test_dates_can_be_narrowed_from_the_year_to_the_day(viewer: Client, tenant: Tenant) -> None:
    for name, days in (("first", 0), ("second", 40), ("third", 400)):
        call(tenant, name, submitted_at=EARLIER + timedelta(days=days))
    page = read_page(viewer.get(build_list_url(CALLS)))
    assert ">2026</a>" in page
    assert ">2027</a>" in page
    assert read_call_names(viewer, year=2026) == ["second", "first"]
    assert read_call_names(viewer, year=2026, month=2) == ["second"]
    assert read_call_names(viewer, year=2026, month=1, day=1) == ["first"]
    assert read_call_names(viewer, year=2026, month=1, day=2) == []
    month = read_page(viewer.get(build_list_url(CALLS, year=2027)))
    assert "February 2027" in month
    assert "‹ All dates" in month


def test_dates_are_due_times_of_the_selected_status(viewer: Client, tenant: Tenant) -> None:
    call(tenant, "failed", status="Failed", due_at=EARLIER + timedelta(days=3))
    call(tenant, "other", submitted_at=EARLIER + timedelta(days=500))
    assert read_call_names(viewer, status="Failed", year=2026, month=1, day=4) == ["failed"]
    assert "year=2027" not in read_page(viewer.get(build_list_url(CALLS, status="Failed")))


def test_timers_are_listed_the_next_one_first(viewer: Client, tenant: Tenant) -> None:
    for hours, host in ((2, "later.test"), (1, "sooner.test")):
        owner = call(tenant, host)
        TimerFactory(
            tenant_id=tenant.pk, service_call_id=owner.service_call_id, due_at=EARLIER + timedelta(hours=hours), host=host
        )  # fmt: skip
    rows = read_rows(viewer.get(build_list_url("timers_timerschedule")))
    assert ["sooner.test" in rows[0], "later.test" in rows[1]] == [True, True]
    assert read_rows(viewer.get(build_list_url("timers_timerschedule", state="Reached"))) == []


def test_events_are_filtered_by_whether_they_are_published(viewer: Client, tenant: Tenant) -> None:
    OutboxEventFactory(tenant_id=tenant.pk, event_type="Sent", published_at=EARLIER)
    OutboxEventFactory(tenant_id=tenant.pk, event_type="Waits")
    OutboxEventFactory(tenant_id=tenant.pk, event_type="Parked", parked_at=EARLIER, attempts=5)

    def types(**query: Any) -> list[str]:
        return sorted(
            row.split()[1] for row in read_rows(viewer.get(build_list_url("outbox_outboxevent", **query)))
        )

    assert types() == ["Parked", "Sent", "Waits"]
    assert types(published="waiting") == types(published="waiting", tenant=tenant.pk) == ["Waits"]
    assert types(published="parked") == types(published="parked", tenant=tenant.pk) == ["Parked"]
    assert types(tenant=tenant.pk) == ["Parked", "Sent", "Waits"]


def test_attempts_and_deliveries_are_filtered_by_outcome(viewer: Client, tenant: Tenant) -> None:
    owner = call(tenant, "call")
    of_call = {"tenant_id": tenant.pk, "service_call_id": owner.service_call_id}
    HttpExecutionFactory(**of_call, attempt=1, finished_at=EARLIER, error_kind="timeout")
    HttpExecutionFactory(**of_call, attempt=2, finished_at=EARLIER, response_status=200)
    HttpExecutionFactory(**of_call, attempt=3)
    for end, shown_as in (("failed", "timeout"), ("answered", "200"), ("open", "–")):
        (row,) = read_rows(viewer.get(build_list_url("execution_httpexecution", end=end)))
        assert shown_as in row
    endpoint = WebhookEndpoint.objects.create(
        tenant_id=tenant.pk, endpoint_id=new_id(), url="http://h/", secret="", created_at=EARLIER
    )
    WebhookDelivery.objects.create(
        tenant_id=tenant.pk, delivery_id=new_id(), endpoint_id=endpoint.endpoint_id, event_id=new_id(),
        aggregate_id=new_id(), aggregate_seq=1, body="", created_at=EARLIER,
    )  # fmt: skip
    assert len(read_rows(viewer.get(build_list_url("outbox_webhookdelivery", state="Pending")))) == 1
    assert read_rows(viewer.get(build_list_url("outbox_webhookdelivery", state="Exhausted"))) == []


# --- search -----------------------------------------------------------------------------------------------------


def test_a_call_of_any_tenant_is_found_by_its_id(viewer: Client, tenant: Tenant, intruder: Tenant) -> None:
    call(tenant, "ours")
    theirs = call(intruder, "theirs")
    assert read_call_names(viewer, q=f" {theirs.service_call_id} ") == ["theirs"]
    assert read_call_names(viewer, q=theirs.correlation_id) == ["theirs"]
    assert read_call_names(viewer, q=new_id()) == []


def test_a_call_is_found_by_its_name(viewer: Client, tenant: Tenant) -> None:
    NamespaceFactory(tenant=tenant)
    call(tenant, "invoice-1", host="billing.example", idempotency_key="key/1", external_id="timer 1")
    call(tenant, "invoice-2", host="mail.example")
    call(tenant, "other", host="other.example")
    assert sorted(read_call_names(viewer, q="invoice")) == ["invoice-1", "invoice-2"]
    for text in ("invoice-1", "billing", "key/1", "timer 1"):
        assert read_call_names(viewer, q=text) == ["invoice-1"], text
    for text in ("nvoice", "INVOICE", "key", "timer", "%", "invoice-1%", "'"):
        assert read_call_names(viewer, q=text) == [], text


def test_a_search_respects_the_tenant_and_the_status(
    viewer: Client, tenant: Tenant, intruder: Tenant
) -> None:
    call(tenant, "job", status="Failed")
    call(tenant, "job", status="Succeeded")
    call(intruder, "job")
    assert len(read_call_names(viewer, q="job")) == 2
    assert len(read_call_names(viewer, q="job", status="Failed")) == 1
    assert len(read_call_names(viewer, q="job", tenant=intruder.pk)) == 1


def test_rare_names_are_found_behind_a_common_one(
    viewer: Client, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestration.admin.MAX_FOUND", 2)
    for _ in range(5):
        call(tenant, "job")
    call(tenant, "job-special")
    assert sorted(read_call_names(viewer, q="job")) == ["job", "job", "job-special"]


def test_rows_of_a_call_are_found_by_its_id(viewer: Client, intruder: Tenant) -> None:
    owner = call(intruder, "call")
    of_call = {"tenant_id": intruder.pk, "service_call_id": owner.service_call_id}
    TimerFactory(**of_call)
    HttpExecutionFactory(**of_call)
    ServiceCallTagFactory(**of_call)
    OutboxEventFactory(tenant_id=intruder.pk, aggregate_id=owner.service_call_id)
    lists_of_it = (
        "timers_timerschedule", "execution_httpexecution", "orchestration_servicecalltag", "outbox_outboxevent",
    )  # fmt: skip
    for model in lists_of_it:
        assert len(read_rows(viewer.get(build_list_url(model, q=owner.service_call_id)))) == 1, model
        assert read_rows(viewer.get(build_list_url(model, q=new_id()))) == [], model


def test_a_timer_of_any_tenant_is_found_by_its_correlation_id(viewer: Client, intruder: Tenant) -> None:
    owner = call(intruder, "call")
    timer = TimerFactory(tenant_id=intruder.pk, service_call_id=owner.service_call_id)
    url = build_list_url("timers_timerschedule", q=timer.correlation_id)
    assert len(read_rows(viewer.get(url))) == 1


def test_a_search_without_results_says_what_can_be_searched_for(viewer: Client, tenant: Tenant) -> None:
    page = read_page(viewer.get(build_list_url(CALLS, q="nothing like it")))
    assert "No results for “nothing like it”" in page
    assert "complete idempotency key" in page


# --- and no more than that ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "lookup"),
    [
        (CALLS, "request_spec__headers__Authorization__startswith"),
        (CALLS, "due_at__year"),
        ("tenants_apikey", "secret_hash__startswith"),
        ("tenants_apikey", "tenant__signing_secret__startswith"),
        ("tenants_tenant", "signing_secret__startswith"),
        ("outbox_webhookendpoint", "secret__startswith"),
        ("auth_user", "password__startswith"),
    ],
)
def test_a_column_without_a_filter_cannot_be_queried(
    model: str, lookup: str, admin: Client, tenant: Tenant
) -> None:
    assert admin.get(build_list_url(model, **{lookup: "a"})).status_code == 400


def test_the_order_cannot_be_changed_by_the_url(viewer: Client, tenant: Tenant) -> None:
    for number, name in enumerate("bca"):
        call(tenant, name, submitted_at=EARLIER + timedelta(seconds=number))
    assert read_call_names(viewer, o="1") == read_call_names(viewer, o="-1") == ["a", "c", "b"]


def test_a_long_list_is_counted_up_to_a_cap(
    viewer: Client, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eventservice.db.bounded_count.MAX_COUNTED", 60)
    for number in range(70):
        call(tenant, f"n{number}", submitted_at=EARLIER + timedelta(seconds=number))
    page = read_page(viewer.get(build_list_url(CALLS)))
    assert "60+ service calls" in page
    assert "61" not in page.split("paginator")[1].split("</p>")[0]
    assert read_call_names(viewer, p=2)[0] == "n19"


def test_a_list_reads_no_bodies_and_runs_no_query_per_row(
    viewer: Client, tenant: Tenant, django_assert_max_num_queries: Any
) -> None:
    NamespaceFactory(tenant=tenant)
    for number in range(20):
        call(tenant, f"n{number}")
    with django_assert_max_num_queries(14) as queries:
        assert len(read_call_names(viewer)) == 20
    assert not any("request_spec" in query["sql"] for query in queries)
    assert ServiceCall.objects.for_tenant(tenant.pk).count() == 20

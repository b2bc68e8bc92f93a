"""A pasted ID leads to its call, or to the trace with this correlation ID."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from eventservice.console.calls import list_query
from eventservice.tenants.directory import create_tenant
from eventservice.tenants.models import Tenant
from tests.console.call_list import get_list_page, make_call, read_names
from tests.console.call_pages import build_call_url

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]
CORRELATION = uuid.UUID("0190aaaa-0000-7000-8000-000000000001")


@pytest.fixture
def call(tenant: Tenant, intruder: Tenant) -> Any:
    make_call(intruder, 1, name="other", status="Failed")
    return make_call(tenant, 2, name="wanted", correlation_id=CORRELATION)


def build_trace_url(tenant_id: uuid.UUID) -> str:
    return f"/traces/{tenant_id}/{CORRELATION}/"


def look_up(client: Client, query: str) -> Any:
    return client.get(f"/calls/?{query}", HTTP_ACCEPT="text/html")


def test_the_id_of_a_call_leads_to_its_page_for_any_tenant(viewer: Client, tenant: Tenant, call: Any) -> None:
    for text in (str(call.service_call_id), f"+{str(call.service_call_id).upper()}+"):
        response = look_up(viewer, f"id={text}")
        assert response.status_code == 303
        assert response["Location"] == build_call_url(tenant.tenant_id, call.service_call_id)


def test_the_other_filters_do_not_hide_a_call_whose_id_is_known(viewer: Client, call: Any) -> None:
    query = f"id={call.service_call_id}&tenant={call.tenant_id}&status=Failed&name=other"
    assert look_up(viewer, query)["Location"] == build_call_url(call.tenant_id, call.service_call_id)


def test_only_calls_of_the_chosen_tenant_are_found(viewer: Client, intruder: Tenant, call: Any) -> None:
    for wanted in (call.service_call_id, CORRELATION):
        page = get_list_page(viewer, f"id={wanted}&tenant={intruder.tenant_id}", status=404)
        assert "No call of intruder has this ID or correlation ID." in page


def test_a_correlation_id_leads_to_its_trace(viewer: Client, call: Any) -> None:
    url = build_trace_url(call.tenant_id)
    for query in (f"id={CORRELATION}", f"id={CORRELATION}&tenant={call.tenant_id}&limit=10"):
        response = look_up(viewer, query)
        assert (response.status_code, response["Location"]) == (303, url)
    assert viewer.get(url, HTTP_ACCEPT="text/html").status_code == 200


def test_a_correlation_id_of_several_tenants_becomes_the_filter_and_the_others_stay(
    viewer: Client, intruder: Tenant, call: Any
) -> None:
    make_call(intruder, 1, name="theirs", correlation_id=CORRELATION)
    response = look_up(viewer, f"id={CORRELATION}&limit=10&sort=dueAt")
    assert (response.status_code, response["Location"]) == (
        303,
        f"/calls/?limit=10&sort=dueAt&correlationId={CORRELATION}",
    )
    assert read_names(get_list_page(viewer, response["Location"].partition("?")[2])) == ["theirs", "wanted"]
    chosen = look_up(viewer, f"id={CORRELATION}&tenant={intruder.tenant_id}")
    assert chosen["Location"] == build_trace_url(intruder.tenant_id)


def test_a_list_of_the_calls_of_a_trace_links_to_it(viewer: Client, tenant: Tenant, call: Any) -> None:
    link = f'href="{build_trace_url(call.tenant_id)}"'
    query = f"tenant={call.tenant_id}&correlationId={CORRELATION}"
    assert link in get_list_page(viewer, query)
    assert link not in get_list_page(viewer, f"correlationId={CORRELATION}")
    assert "/traces/" not in get_list_page(viewer, f"{query}&status=Failed")


def test_an_unknown_id_is_reported_at_its_field_and_can_be_corrected(viewer: Client, call: Any) -> None:
    page = get_list_page(viewer, f"id={uuid.uuid4()}&name=wanted", status=404)
    assert 'id="w-id">No call has this ID or correlation ID.</span>' in page
    assert 'name="name" value="wanted"' in page
    assert read_names(page) == []
    page = get_list_page(viewer, "id=rubbish", status=400)
    assert 'name="id" value="rubbish"' in page
    assert 'id="w-id">ID must be a UUID.</span>' in page


def test_an_id_with_calls_of_several_tenants_requires_a_tenant(
    viewer: Client, intruder: Tenant, call: Any
) -> None:
    make_call(intruder, 3, service_call_id=call.service_call_id)
    page = get_list_page(viewer, f"id={call.service_call_id}", status=404)
    assert "Several tenants have a call with this ID: choose one of acme, intruder." in page
    chosen = look_up(viewer, f"id={call.service_call_id}&tenant={intruder.tenant_id}")
    assert chosen["Location"] == build_call_url(intruder.tenant_id, call.service_call_id)


def test_an_id_is_found_with_many_tenants(viewer: Client, call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(list_query, "MAX_TENANTS", 1)
    found = look_up(viewer, f"id={call.service_call_id}")
    assert found["Location"] == build_call_url(call.tenant_id, call.service_call_id)
    assert look_up(viewer, f"id={CORRELATION}")["Location"] == build_trace_url(call.tenant_id)
    assert "No call has this ID" in get_list_page(viewer, f"id={uuid.uuid4()}", status=404)


def test_more_tenants_need_no_more_queries(viewer: Client, call: Any) -> None:
    look_up(viewer, f"id={uuid.uuid4()}")
    with CaptureQueriesContext(connection) as few:
        look_up(viewer, f"id={uuid.uuid4()}")
    for number in range(3):
        create_tenant(f"more-{number}")
    with CaptureQueriesContext(connection) as more:
        look_up(viewer, f"id={uuid.uuid4()}")
    assert len(more) == len(few)


def test_actions_on_a_list_refuse_an_id_instead_of_taking_every_call(operator: Client, call: Any) -> None:
    query = f"id={call.service_call_id}"
    for address in (f"/calls/export.csv?{query}", f"/calls/bulk/?do=cancel&{query}"):
        response = operator.get(address, HTTP_ACCEPT="text/html")
        assert response.status_code == 400
        assert "is a lookup, not a filter" in response.content.decode()

"""From an id alone to what it is the id of: a call, or the request that made calls."""

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
from tests.console.call_pages import address_of
from tests.console.status_rows import make_call, names, shown

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]
CORRELATION = uuid.UUID("0190aaaa-0000-7000-8000-000000000001")


@pytest.fixture
def call(tenant: Tenant, intruder: Tenant) -> Any:
    make_call(intruder, 1, name="other", status="Failed")
    return make_call(tenant, 2, name="sought", correlation_id=CORRELATION)


def look_for(client: Client, query: str) -> Any:
    return client.get(f"/calls/?{query}", HTTP_ACCEPT="text/html")


def test_the_id_of_a_call_leads_to_its_page_whoever_it_belongs_to(
    viewer: Client, tenant: Tenant, call: Any
) -> None:
    for said in (str(call.service_call_id), f"+{str(call.service_call_id).upper()}+"):
        response = look_for(viewer, f"id={said}")
        assert response.status_code == 303
        assert response["Location"] == address_of(tenant.tenant_id, call.service_call_id)


def test_the_other_filters_do_not_hide_a_call_whose_id_is_known(viewer: Client, call: Any) -> None:
    query = f"id={call.service_call_id}&tenant={call.tenant_id}&status=Failed&name=other"
    assert look_for(viewer, query)["Location"] == address_of(call.tenant_id, call.service_call_id)


def test_of_a_chosen_tenant_only_its_own_calls_are_found(viewer: Client, intruder: Tenant, call: Any) -> None:
    for sought in (call.service_call_id, CORRELATION):
        page = shown(viewer, f"id={sought}&tenant={intruder.tenant_id}", status=404)
        assert "No call of intruder has this id or correlation id." in page


def test_a_correlation_id_becomes_the_filter_and_the_others_stay(viewer: Client, call: Any) -> None:
    response = look_for(viewer, f"id={CORRELATION}&limit=10&sort=dueAt")
    assert (response.status_code, response["Location"]) == (
        303,
        f"/calls/?limit=10&sort=dueAt&correlationId={CORRELATION}",
    )
    assert names(shown(viewer, response["Location"].partition("?")[2])) == ["sought"]


def test_an_id_of_nothing_is_said_to_be_at_its_field_and_can_be_mended(viewer: Client, call: Any) -> None:
    page = shown(viewer, f"id={uuid.uuid4()}&name=sought", status=404)
    assert 'id="w-id">No call has this id or correlation id.</span>' in page
    assert 'name="name" value="sought"' in page
    assert names(page) == []
    page = shown(viewer, "id=rubbish", status=400)
    assert 'name="id" value="rubbish"' in page
    assert 'id="w-id">No call has this id: it must be a UUID.</span>' in page


def test_an_id_that_calls_of_several_tenants_have_asks_for_the_tenant(
    viewer: Client, intruder: Tenant, call: Any
) -> None:
    make_call(intruder, 3, service_call_id=call.service_call_id)
    page = shown(viewer, f"id={call.service_call_id}", status=404)
    assert "Several tenants have a call with this id: choose one of acme, intruder." in page
    chosen = look_for(viewer, f"id={call.service_call_id}&tenant={intruder.tenant_id}")
    assert chosen["Location"] == address_of(intruder.tenant_id, call.service_call_id)


def test_it_is_found_whatever_the_number_of_tenants(
    viewer: Client, call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(list_query, "MOST_TENANTS", 1)
    found = look_for(viewer, f"id={call.service_call_id}")
    assert found["Location"] == address_of(call.tenant_id, call.service_call_id)
    correlated = look_for(viewer, f"id={CORRELATION}")
    assert names(shown(viewer, correlated["Location"].partition("?")[2])) == ["sought"]
    assert "No call has this id" in shown(viewer, f"id={uuid.uuid4()}", status=404)


def test_more_tenants_are_no_more_questions(viewer: Client, call: Any) -> None:
    look_for(viewer, f"id={uuid.uuid4()}")
    with CaptureQueriesContext(connection) as few:
        look_for(viewer, f"id={uuid.uuid4()}")
    for number in range(3):
        create_tenant(f"more-{number}")
    with CaptureQueriesContext(connection) as more:
        look_for(viewer, f"id={uuid.uuid4()}")
    assert len(more) == len(few)


def test_what_acts_on_a_list_refuses_an_id_instead_of_taking_every_call(operator: Client, call: Any) -> None:
    query = f"id={call.service_call_id}"
    for address in (f"/calls/export.csv?{query}", f"/calls/bulk/?do=cancel&{query}"):
        response = operator.get(address, HTTP_ACCEPT="text/html")
        assert response.status_code == 400
        assert "is looked up by the list alone" in response.content.decode()

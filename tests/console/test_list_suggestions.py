"""The filters suggest values of the calls that are listed."""

from __future__ import annotations

import re
from html import unescape

import pytest
from django.test import Client

from eventservice.tenants.models import Tenant
from tests.console.call_list import make_call

pytestmark = pytest.mark.django_db


def fetch_suggestions(client: Client, column: str, query: str = "") -> list[str]:
    response = client.get(f"/calls/suggestions/{column}/?{query}", HTTP_HX_REQUEST="true")
    assert response.status_code == 200
    return [
        unescape(value)
        for value in re.findall(r'<option value="([^"]*)"></option>', response.content.decode())
    ]


def test_values_are_suggested_for_the_chosen_tenant(viewer: Client, tenant: Tenant, intruder: Tenant) -> None:
    make_call(tenant, name='Sync "stock"', tags=("a", "nightly"))
    make_call(intruder, name="Sync prices", host="prices.test")
    assert fetch_suggestions(viewer, "name", "name=sync") == ['Sync "stock"', "Sync prices"]
    assert fetch_suggestions(viewer, "name", f"name=sync&tenant={intruder.tenant_id}") == ["Sync prices"]
    assert fetch_suggestions(viewer, "host", "host=pri&name=ignored&tenant=") == ["prices.test"]
    assert fetch_suggestions(viewer, "tag", "tag=chosen&tag=night") == ["nightly"]
    assert fetch_suggestions(viewer, "name", "name=%22Sync+p%22") == ["Sync prices"]


@pytest.mark.parametrize("query", ["tenant=acme", "name=" + "x" * 3000])
def test_nothing_is_suggested_for_values_that_no_call_can_have(viewer: Client, query: str) -> None:
    assert fetch_suggestions(viewer, "name", query) == []


def test_other_columns_are_not_suggested(viewer: Client, outsider: Client) -> None:
    assert viewer.get("/calls/suggestions/request_spec/").status_code == 404
    assert outsider.get("/calls/suggestions/name/").status_code in (302, 403)

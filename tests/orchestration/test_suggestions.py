"""Filters are suggested from the latest calls, in any case, and from older calls by their beginning."""

from __future__ import annotations

import pytest

from eventservice.tenants.models import Tenant
from orchestration.queries import suggestions
from orchestration.queries.suggestions import list_suggestions
from tests.console.call_list import make_call

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def calls(tenant: Tenant, intruder: Tenant) -> None:
    make_call(tenant, -9, name="Synchronize", host="old.test", tags=("old", "favorite"))
    for minute in range(3):
        make_call(tenant, minute, name="Sync stock", host="stock.test", tags=("nightly", "stock"))
    make_call(tenant, 5, name="Resync", host="stock.test", tags=("stock",))
    make_call(intruder, 6, name="Sync of another tenant", host="other.test", tags=("other",))


@pytest.mark.parametrize(
    ("column", "text", "expected"),
    [
        ("name", "", ["Sync stock", "Resync", "Synchronize"]),
        ("name", "sync", ["Sync stock", "Synchronize", "Resync"]),
        ("name", "SYNCH", ["Synchronize"]),
        ("host", "stock", ["stock.test"]),
        ("tag", "", ["stock", "nightly", "old"]),
        ("tag", "favorite", []),
        ("name", "nothing", []),
    ],
)
def test_values_of_the_latest_calls_are_suggested(
    tenant: Tenant, column: str, text: str, expected: list[str]
) -> None:
    assert list_suggestions([tenant.tenant_id], column, text, 10) == expected


def test_values_of_older_calls_are_suggested_by_their_beginning(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suggestions, "MAX_ROWS", 3)
    monkeypatch.setattr(suggestions, "MIN_ROWS_OF_TENANT", 1)
    assert list_suggestions([tenant.tenant_id], "name", "", 10) == ["Sync stock", "Resync"]
    assert list_suggestions([tenant.tenant_id], "name", "Synch", 10) == ["Synchronize"]
    assert list_suggestions([tenant.tenant_id], "name", "synch", 10) == []
    assert list_suggestions([tenant.tenant_id], "tag", "ol", 10) == ["old"]


def test_the_calls_of_several_tenants_are_counted_together(tenant: Tenant, intruder: Tenant) -> None:
    both = [tenant.tenant_id, intruder.tenant_id]
    assert list_suggestions(both, "name", "sync ", 10) == ["Sync stock", "Sync of another tenant"]
    assert list_suggestions(both, "name", "sync ", 1) == ["Sync stock"]
    assert list_suggestions([], "name", "sync", 10) == []

"""The pages of timers whose namespace has a timer store."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any
from unittest.mock import patch
from urllib.parse import urlencode

import pytest
from django.test import Client

from eventservice.console import timers as timers_page
from eventservice.kernel.ids import new_id
from orchestration import durable_timers
from orchestration.feeder.namespaces import declare_namespace
from orchestration.feeder.timer_changes import get_stored_timers
from orchestration.timer_callbacks import build_timer_command
from tests.console.test_timers_page import get_page, read_ids
from tests.contracts.timer_stores.memory_fleet import FLEET, MemoryFleet
from tests.factories import NOON

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]


@pytest.fixture(autouse=True)
def namespace(tenant: Any, fleet: MemoryFleet) -> None:
    declare_namespace(tenant.tenant_id, "alerts", 4, FLEET.name, record=lambda namespace: None)


def set_timers(tenant: Any, *ids: str) -> None:
    for timer_id in ids:
        command = build_timer_command(
            tenant.tenant_id,
            new_id(),
            ("alerts", timer_id),
            execute_at=NOON + timedelta(hours=1),
            callback_url="https://example.test/callback?token=hunter2",
            timeout_seconds=5.0,
            payload={"order": 17},
        )
        durable_timers.set_timer(command)


def get_list(viewer: Client, tenant: Any, **query: Any) -> str:
    return get_page(viewer, tenant=tenant.tenant_id, namespace="alerts", **query)


def get_timer_page(viewer: Client, tenant: Any, timer_id: str) -> Any:
    key = {"tenant": tenant.tenant_id, "namespace": "alerts", "id": timer_id}
    return viewer.get(f"/timers/timer/?{urlencode(key)}", HTTP_ACCEPT="text/html")


def test_pending_timers_of_the_namespace_are_listed_page_by_page(viewer: Client, tenant: Any) -> None:
    ids = [f"order-{number}" for number in range(5)]
    set_timers(tenant, *ids)
    with patch.object(timers_page, "PAGE_SIZE", 2):
        found, page = [], get_list(viewer, tenant)
        assert "From the timer store fleet" in page
        found += read_ids(page)
        while '">Next' in page:
            following = page.split('">Next')[0].rpartition('href="')[2].replace("&amp;", "&")
            page = viewer.get(f"/timers/{following}", HTTP_ACCEPT="text/html").content.decode()
            found += read_ids(page)
    assert sorted(found) == ids


def test_a_timer_is_found_by_its_whole_id(viewer: Client, tenant: Any) -> None:
    set_timers(tenant, "order-1", "order-10")
    assert read_ids(get_list(viewer, tenant, id="order-1")) == ["order-1"]
    assert "found by its whole id" in get_list(viewer, tenant, id="order")


@pytest.mark.parametrize("query", [{"due": "1h"}, {"from": "2026-03-01T12:00"}, {"to": "2026-03-01T12:00"}])
def test_due_times_cannot_be_searched_for(viewer: Client, tenant: Any, query: dict[str, str]) -> None:
    page = get_page(viewer, status=400, tenant=tenant.tenant_id, namespace="alerts", **query)
    assert "cannot be searched for in the timer store fleet" in page


def test_the_list_of_all_namespaces_says_what_it_leaves_out(viewer: Client, tenant: Any) -> None:
    set_timers(tenant, "order-1")
    hint = "Choose a tenant and a namespace with a timer store"
    for query in ({"tenant": tenant.tenant_id}, {}):
        page = get_page(viewer, **query)
        assert read_ids(page) == []
        assert hint in page
    assert hint not in get_list(viewer, tenant)


def test_a_pending_timer_has_a_page_before_it_has_a_call(viewer: Client, tenant: Any) -> None:
    set_timers(tenant, "order-1")
    response = get_timer_page(viewer, tenant, "order-1")
    page = response.content.decode()
    assert response.status_code == 200, page
    assert "becomes a call when it is about to be due" in page
    assert "Open its call" not in page
    assert FLEET.name in page
    assert "hunter2" not in page


def test_a_timer_that_was_fed_leads_to_its_call(viewer: Client, tenant: Any, fleet: MemoryFleet) -> None:
    set_timers(tenant, "order-1")
    (timer,) = fleet.tables.timers.values()
    get_stored_timers(FLEET.name).set(replace(timer, revision=new_id(), execute_at=NOON))  # type: ignore[arg-type]
    page = get_timer_page(viewer, tenant, "order-1").content.decode()
    assert "Open its call" in page


def test_an_unavailable_store_is_reported(viewer: Client, tenant: Any, fleet: MemoryFleet) -> None:
    fleet.is_available = False
    page = get_page(viewer, status=503, tenant=tenant.tenant_id, namespace="alerts")
    assert "The timer store of this namespace is not available" in page

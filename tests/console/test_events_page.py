"""The outbox: what waits and why, and lists of events that examine a limited part of it."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from eventservice.db.now import db_now
from eventservice.kernel.ids import new_id
from eventservice.tenants.models import Tenant
from outbox import queries
from outbox.models import OutboxEvent
from outbox.parking import list_parked_events
from outbox.queries import EventFilter, StateFilter, list_events
from tests.factories import OutboxEventFactory
from tests.outbox.support import RecordingPublisher, build_dispatcher, drain, store_run

pytestmark = pytest.mark.django_db


def list_ids(events: Any) -> list[int]:
    return [event.id for event in events]


def list_shown_ids(client: Client, query: str = "") -> list[int]:
    response = client.get(f"/events/?{query}")
    assert response.status_code == 200
    return [row["event"].id for row in response.context["rows"]]


@pytest.fixture
def stuck_event(tenant: Tenant) -> OutboxEvent:
    poison = store_run(new_id(), 3, tenant_id=tenant.tenant_id)[0]
    publisher = RecordingPublisher()
    publisher.poison = {poison.event_id}
    drain(build_dispatcher(publisher))
    return list_parked_events().get()


def test_an_empty_outbox_says_what_it_will_show(viewer: Client) -> None:
    assert "No events yet" in viewer.get("/events/").content.decode()


def test_without_a_dispatcher_it_says_what_to_start(viewer: Client) -> None:
    assert "No dispatcher is running" in viewer.get("/events/").content.decode()


def test_the_parked_event_is_shown_with_its_error_and_what_waits_behind_it(
    viewer: Client, stuck_event: OutboxEvent
) -> None:
    response = viewer.get("/events/")
    (row,) = response.context["parked"]
    assert (row["event"].id, row["behind"]) == (stuck_event.id, 2)
    assert "recording: too large" in response.content.decode()
    assert response.context["status"].waiting_behind_parked == 2


def test_events_are_listed_by_waiting_parked_and_held(viewer: Client, stuck_event: OutboxEvent) -> None:
    waiting = store_run(new_id(), 2, tenant_id=stuck_event.tenant_id)
    held = list_ids(OutboxEvent.across_tenants.filter(attempts=0, parked_at__isnull=False).order_by("id"))
    assert list_shown_ids(viewer, "show=parked") == [stuck_event.id]
    assert list_shown_ids(viewer, "show=held") == held
    assert len(held) == len(waiting) == 2
    assert len(list_shown_ids(viewer, "show=waiting")) == 2
    assert len(list_shown_ids(viewer)) == 5


def test_unpublished_events_are_counted_by_tenant_and_type(
    viewer: Client, tenant: Tenant, intruder: Tenant
) -> None:
    store_run(new_id(), 3, tenant_id=tenant.tenant_id)
    store_run(new_id(), 1, tenant_id=intruder.tenant_id, type="ServiceCallFailed")
    kinds = viewer.get("/events/").context["kinds"]
    assert [(name, kind.event_type, kind.count) for kind, name in kinds] == [
        ("acme", "ServiceCallSubmitted", 3),
        ("intruder", "ServiceCallFailed", 1),
    ]


def test_the_age_of_the_oldest_event_is_shown(viewer: Client, tenant: Tenant) -> None:
    store_run(new_id(), 1, tenant_id=tenant.tenant_id, occurred_at=db_now() - timedelta(hours=2))
    assert "2 h" in viewer.get("/events/").content.decode()


def test_events_are_filtered_by_tenant_type_and_call(
    viewer: Client, tenant: Tenant, intruder: Tenant
) -> None:
    call = new_id()
    mine = store_run(call, 2, tenant_id=tenant.tenant_id)
    store_run(new_id(), 1, tenant_id=tenant.tenant_id, type="ServiceCallFailed")
    store_run(call, 1, tenant_id=intruder.tenant_id, type="ServiceCallFailed")
    assert len(mine) == 2
    assert len(list_shown_ids(viewer, f"tenant={tenant.tenant_id}")) == 3
    assert len(list_shown_ids(viewer, "type=ServiceCallFailed")) == 2
    assert len(list_shown_ids(viewer, f"call={call}")) == 3
    assert len(list_shown_ids(viewer, f"call={call}&tenant={tenant.tenant_id}&show=waiting&type=")) == 2


def test_links_keep_the_filters(viewer: Client, tenant: Tenant) -> None:
    store_run(new_id(), 1, tenant_id=tenant.tenant_id)
    page = viewer.get(f"/events/?tenant={tenant.tenant_id}&show=waiting").content.decode()
    assert f'href="?show=parked&amp;tenant={tenant.tenant_id}"' in page


@pytest.mark.parametrize("query", ["tenant=acme", "call=1", "show=gone", "cursor=x", "cursor=" + "9" * 30])
def test_an_invalid_filter_is_an_error_and_not_an_empty_list(viewer: Client, query: str) -> None:
    response = viewer.get(f"/events/?{query}", HTTP_ACCEPT="text/html")
    assert response.status_code == 400
    assert "Fix the filters" in response.content.decode()


@pytest.mark.parametrize("show", list(StateFilter))
@pytest.mark.usefixtures("tenant")
def test_paging_shows_every_event_once(show: StateFilter, tenant: Tenant) -> None:
    states: dict[StateFilter, dict[str, Any]] = {
        StateFilter.ALL: {},
        StateFilter.WAITING: {},
        StateFilter.PARKED: {"parked_at": db_now(), "attempts": 5},
        StateFilter.HELD: {"parked_at": db_now()},
    }
    rows = [
        OutboxEventFactory(tenant_id=tenant.tenant_id, partition=n % 5, **states[show]) for n in range(23)
    ]
    seen: list[int] = []
    page = list_events(EventFilter(show), None, 4)
    seen += list_ids(page.events)
    while page.cursor:
        page = list_events(EventFilter(show), page.cursor, 4)
        seen += list_ids(page.events)
    assert seen == sorted(list_ids(rows), reverse=show is StateFilter.ALL)


@pytest.mark.parametrize("show", [StateFilter.ALL, StateFilter.WAITING])
def test_a_filter_searches_a_limited_number_and_offers_to_continue(
    show: StateFilter, tenant: Tenant, intruder: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "MAX_SCANNED", 32)
    wanted = EventFilter(show, intruder.tenant_id)
    ends = [OutboxEventFactory(tenant_id=intruder.tenant_id)]
    for n in range(200):
        OutboxEventFactory(tenant_id=tenant.tenant_id, partition=n % 16)
    ends.append(OutboxEventFactory(tenant_id=intruder.tenant_id))
    page = list_events(wanted, None, 10)
    assert page.partial
    seen = list_ids(page.events)
    for _ in range(100):
        if page.cursor is None:
            break
        page = list_events(wanted, page.cursor, 10)
        seen += list_ids(page.events)
    assert page.cursor is None
    assert sorted(seen) == list_ids(ends)


def test_new_events_are_announced_and_do_not_move_the_rows(viewer: Client, tenant: Tenant) -> None:
    store_run(new_id(), 1, tenant_id=tenant.tenant_id)
    top = viewer.get("/events/").context["top"]
    store_run(new_id(), 2, tenant_id=tenant.tenant_id)
    assert "2 new · Show" in viewer.get(f"/events/?seen={top}", HTTP_HX_REQUEST="true").content.decode()


def test_a_list_reads_no_payloads(viewer: Client, tenant: Tenant) -> None:
    store_run(new_id(), 1, tenant_id=tenant.tenant_id)
    (row,) = viewer.get("/events/").context["rows"]
    assert "event_payload" in row["event"].get_deferred_fields()


def test_the_number_of_queries_does_not_grow_with_the_events(
    viewer: Client, tenant: Tenant, django_assert_max_num_queries: Any
) -> None:
    for _ in range(30):
        store_run(uuid.uuid4(), 1, tenant_id=tenant.tenant_id)
    with django_assert_max_num_queries(30):
        viewer.get("/events/")

"""Published events are deleted by the time of publishing, and nothing else is."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from eventservice.kernel.ids import new_id
from outbox.models import OutboxEvent, WebhookDelivery
from outbox.publishers.webhook.endpoints import create_endpoint
from outbox.publishers.webhook.publisher import WebhookPublisher
from outbox.retention import Pruned, prune
from tests.factories import OutboxEventFactory
from tests.outbox.support import NOON, TENANT, build_dispatcher, drain, store_run

pytestmark = pytest.mark.django_db
DAY = timedelta(days=1)


@pytest.fixture(autouse=True)
def _noon(at_noon: object) -> None:
    pass


def create_event(**given: Any) -> Any:
    return OutboxEventFactory(**given)


def _list_ids() -> list[int]:
    return list(OutboxEvent.across_tenants.order_by("id").values_list("id", flat=True))


def test_it_deletes_what_was_published_before_that_age() -> None:
    create_event(published_at=NOON - 31 * DAY)
    kept = create_event(published_at=NOON - 29 * DAY)
    assert sum(prune(30 * DAY)) == 1
    assert _list_ids() == [kept.id]


def test_an_old_event_that_was_published_lately_is_kept() -> None:
    late = create_event(created_at=NOON - 90 * DAY, published_at=NOON - DAY)
    assert sum(prune(30 * DAY)) == 0
    assert _list_ids() == [late.id]


def test_old_unpublished_and_parked_events_are_kept_and_hide_no_others() -> None:
    waiting = create_event(created_at=NOON - 90 * DAY)
    parked = create_event(created_at=NOON - 90 * DAY, parked_at=NOON - 80 * DAY, attempts=5)
    create_event(published_at=NOON - 31 * DAY)
    assert sum(prune(30 * DAY)) == 1
    assert _list_ids() == [waiting.id, parked.id]


def test_the_oldest_go_first_and_not_more_than_the_limit() -> None:
    events = [create_event(published_at=NOON - 40 * DAY) for _ in range(5)]
    assert sum(prune(30 * DAY, limit=2)) == 2
    assert _list_ids() == [event.id for event in events[2:]]


def test_it_works_in_many_batches() -> None:
    OutboxEvent.objects.bulk_create(
        OutboxEventFactory.build(published_at=NOON - 40 * DAY) for _ in range(1100)
    )
    assert sum(prune(30 * DAY)) == 1100


def test_many_recently_replayed_events_hide_no_old_ones() -> None:
    OutboxEvent.objects.bulk_create(
        OutboxEventFactory.build(created_at=NOON - 60 * DAY, published_at=NOON - DAY) for _ in range(1100)
    )
    again = _list_ids()
    for _ in range(3):
        create_event(created_at=NOON - 60 * DAY, published_at=NOON - 60 * DAY)
    assert sum(prune(30 * DAY)) == 3
    assert _list_ids() == again


def test_it_stops_reading_where_all_events_are_too_young() -> None:
    OutboxEvent.objects.bulk_create(
        OutboxEventFactory.build(created_at=NOON - DAY, published_at=NOON - DAY) for _ in range(1100)
    )
    with CaptureQueriesContext(connection) as queries:
        prune(30 * DAY)
    assert sum('FROM "outbox"' in query["sql"].replace("`", '"') for query in queries.captured_queries) == 1


def test_webhook_deliveries_are_deleted_by_the_time_at_which_they_finished() -> None:
    store_run(new_id(), 3)
    create_endpoint(TENANT, "http://example.test/")
    drain(build_dispatcher(WebhookPublisher()))
    deliveries = WebhookDelivery.objects.for_tenant(TENANT)
    for sequence, age in ((1, 31 * DAY), (2, 29 * DAY)):
        deliveries.filter(aggregate_seq=sequence).update(
            state="Delivered", finished_at=NOON - age, next_attempt_at=None
        )

    OutboxEvent.across_tenants.filter(aggregate_seq=3).update(
        created_at=NOON - 31 * DAY, published_at=NOON - 31 * DAY
    )
    assert prune(30 * DAY) == Pruned(events=1, deliveries=1)
    assert set(deliveries.values_list("aggregate_seq", flat=True)) == {2, 3}

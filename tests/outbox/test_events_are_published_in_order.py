"""Events of an aggregate are published in the order in which they happened, each of them once."""

from __future__ import annotations

import pytest

from eventservice.kernel.ids import new_id
from outbox.models import OutboxEvent
from tests.outbox.support import RecordingPublisher, build_dispatcher, drain, store_run

pytestmark = pytest.mark.django_db


def test_each_aggregate_keeps_its_order_over_many_passes() -> None:
    aggregates = [new_id() for _ in range(20)]
    for first in (1, 4, 7):
        for aggregate in aggregates:
            store_run(aggregate, 3, first)
    publisher = RecordingPublisher()

    published = drain(build_dispatcher(publisher, batch=32))

    assert published == 180
    assert all(publisher.sequences(aggregate) == list(range(1, 10)) for aggregate in aggregates)


def test_what_is_published_is_marked_with_the_database_time_and_not_published_again() -> None:
    store_run(new_id(), 3)
    publisher = RecordingPublisher()
    dispatcher = build_dispatcher(publisher)

    assert dispatcher.dispatch_once().published == 3
    assert dispatcher.dispatch_once().published == 0

    assert len(publisher.accepted) == 3
    assert not OutboxEvent.across_tenants.filter(published_at=None).exists()


def test_an_event_counts_as_published_only_when_every_publisher_has_accepted_it() -> None:
    aggregate = new_id()
    store_run(aggregate, 4)
    first, second = RecordingPublisher(), RecordingPublisher()
    second.fails_after = 2

    done = build_dispatcher(first, second).dispatch_once()

    assert done.published == 2
    assert first.sequences(aggregate) == [1, 2, 3, 4]
    assert second.sequences(aggregate) == [1, 2]


def test_an_aggregate_with_many_events_is_published_in_bounded_batches() -> None:
    aggregate = new_id()
    store_run(aggregate, 300)
    publisher = RecordingPublisher()
    dispatcher = build_dispatcher(publisher, batch=160)

    assert dispatcher.dispatch_once().published == 10
    drain(dispatcher)

    assert publisher.sequences(aggregate) == list(range(1, 301))

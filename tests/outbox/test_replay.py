"""Events published since a time are published again, in order and under the same ids."""

from __future__ import annotations

from datetime import timedelta

import pytest

from eventservice.db.now import pin_time
from eventservice.kernel.ids import new_id
from outbox.models import OutboxEvent
from outbox.parking import list_parked_events, skip
from outbox.replay import replay
from tests.outbox.support import NOON, RecordingPublisher, build_dispatcher, drain, store_run

pytestmark = pytest.mark.django_db


def test_it_repeats_the_same_events_in_the_same_order() -> None:
    store_run(new_id(), 6)
    publisher = RecordingPublisher()
    drain(build_dispatcher(publisher))
    first = [event.event_id for event in publisher.accepted]
    publisher.accepted.clear()

    assert replay(NOON - timedelta(days=365)) == 6
    drain(build_dispatcher(publisher))

    assert [event.event_id for event in publisher.accepted] == first


def test_it_leaves_alone_what_was_published_before() -> None:
    with pin_time(NOON - timedelta(hours=3)):
        store_run(new_id(), 2)
        drain(build_dispatcher(RecordingPublisher()))
    with pin_time(NOON - timedelta(hours=1)):
        later = store_run(new_id(), 2)
        drain(build_dispatcher(RecordingPublisher()))

    assert replay(NOON - timedelta(hours=2)) == 2
    unpublished = OutboxEvent.across_tenants.filter(published_at=None).order_by("id")
    assert [event.event_id for event in unpublished] == [event.event_id for event in later]


def test_it_can_be_for_one_tenant() -> None:
    ours, theirs = new_id(), new_id()
    store_run(new_id(), 2, tenant_id=ours)
    store_run(new_id(), 2, tenant_id=theirs)
    drain(build_dispatcher(RecordingPublisher()))

    assert replay(NOON - timedelta(days=365), ours) == 2
    assert OutboxEvent.objects.for_tenant(theirs).filter(published_at=None).count() == 0


def test_it_works_in_many_batches() -> None:
    store_run(new_id(), 1100)
    OutboxEvent.across_tenants.update(published_at=NOON)
    assert replay(NOON) == 1100


def test_a_skipped_event_stays_skipped() -> None:
    poison = store_run(new_id(), 2)[0]
    publisher = RecordingPublisher()
    publisher.poison = {poison.event_id}
    drain(build_dispatcher(publisher))
    skip(list_parked_events().get().id)
    drain(build_dispatcher(publisher))

    assert replay(NOON - timedelta(days=365)) == 1

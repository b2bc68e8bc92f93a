"""What was published since a time is published again, in order and under the same ids."""

from __future__ import annotations

from datetime import timedelta

import pytest

from eventservice.db.now import pinned_time
from eventservice.kernel.ids import new_id
from outbox.maintenance import replay
from outbox.models import OutboxEvent
from outbox.parking import parked_events, skip
from tests.outbox.support import NOON, Remembering, append_run, dispatcher, drain

pytestmark = pytest.mark.django_db


def test_it_repeats_the_same_events_in_the_same_order() -> None:
    append_run(new_id(), 6)
    publisher = Remembering()
    drain(dispatcher(publisher))
    first = [event.event_id for event in publisher.taken]
    publisher.taken.clear()

    assert replay(NOON - timedelta(days=365)) == 6
    drain(dispatcher(publisher))

    assert [event.event_id for event in publisher.taken] == first


def test_it_leaves_alone_what_was_published_before() -> None:
    with pinned_time(NOON - timedelta(hours=3)):
        append_run(new_id(), 2)
        drain(dispatcher(Remembering()))
    with pinned_time(NOON - timedelta(hours=1)):
        later = append_run(new_id(), 2)
        drain(dispatcher(Remembering()))

    assert replay(NOON - timedelta(hours=2)) == 2
    unpublished = OutboxEvent.across_tenants.filter(published_at=None).order_by("id")
    assert [event.event_id for event in unpublished] == [event.event_id for event in later]


def test_it_can_be_for_one_tenant() -> None:
    ours, theirs = new_id(), new_id()
    append_run(new_id(), 2, tenant_id=ours)
    append_run(new_id(), 2, tenant_id=theirs)
    drain(dispatcher(Remembering()))

    assert replay(NOON - timedelta(days=365), ours) == 2
    assert OutboxEvent.objects.for_tenant(theirs).filter(published_at=None).count() == 0


def test_it_goes_on_over_many_batches() -> None:
    append_run(new_id(), 1100)
    OutboxEvent.across_tenants.update(published_at=NOON)
    assert replay(NOON) == 1100


def test_a_skipped_event_stays_skipped() -> None:
    poison = append_run(new_id(), 2)[0]
    publisher = Remembering()
    publisher.poison = {poison.event_id}
    drain(dispatcher(publisher))
    skip(parked_events().get().id)
    drain(dispatcher(publisher))

    assert replay(NOON - timedelta(days=365)) == 1

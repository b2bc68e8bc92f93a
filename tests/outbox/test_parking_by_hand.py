"""An operator parks an event that must not be published yet, and the dispatcher, which may be publishing it, is excluded."""

from __future__ import annotations

from typing import Any

import pytest

from eventservice.kernel.ids import new_id
from outbox.dispatcher import Dispatcher
from outbox.models import OutboxEvent
from outbox.parking import list_parked_events, park, skip, unpark
from tests.outbox.support import TENANT, RecordingPublisher, build_dispatcher, drain, store_run

pytestmark = pytest.mark.django_db(transaction=True)


def get_first(aggregate_id: Any) -> OutboxEvent:
    found: OutboxEvent = OutboxEvent.objects.for_tenant(TENANT).get(
        aggregate_id=aggregate_id, aggregate_seq=1
    )
    return found


def test_a_parked_event_delays_only_its_own_call() -> None:
    held, other = new_id(), new_id()
    store_run(held, 2)
    store_run(other, 2)
    assert park(get_first(held).id, "by hand")
    publisher = RecordingPublisher()
    drain(build_dispatcher(publisher))
    assert publisher.sequences(held) == []
    assert publisher.sequences(other) == [1, 2]
    assert list_parked_events().get().last_error == "by hand"


def test_what_comes_later_waits_too() -> None:
    held = new_id()
    store_run(held, 1)
    park(get_first(held).id, "by hand")
    store_run(held, 2, first=2)
    publisher = RecordingPublisher()
    drain(build_dispatcher(publisher))
    assert publisher.accepted == []
    unpark(get_first(held).id)
    drain(build_dispatcher(publisher))
    assert publisher.sequences(held) == [1, 2, 3]


def test_skipping_it_publishes_the_others() -> None:
    held = new_id()
    store_run(held, 3)
    park(get_first(held).id, "by hand")
    assert skip(get_first(held).id)
    publisher = RecordingPublisher()
    drain(build_dispatcher(publisher))
    assert publisher.sequences(held) == [2, 3]


@pytest.mark.parametrize("before", ["published", "parked", "held", "deleted"])
def test_it_is_refused_when_there_is_nothing_to_park(before: str) -> None:
    aggregate = new_id()
    store_run(aggregate, 2)
    key = get_first(aggregate).id
    if before == "published":
        drain(build_dispatcher(RecordingPublisher()))
    elif before == "deleted":
        OutboxEvent.objects.for_tenant(TENANT).delete()
    else:
        assert park(key, "by hand")
        key += before == "held"
    assert not park(key, "again")


def test_an_event_behind_a_parked_one_cannot_be_parked() -> None:
    aggregate = new_id()
    store_run(aggregate, 1)
    park(get_first(aggregate).id, "by hand")
    store_run(aggregate, 1, first=2)
    later = OutboxEvent.objects.for_tenant(TENANT).get(aggregate_seq=2)
    assert not park(later.id, "too")
    assert list_parked_events().count() == 1


def test_a_dispatcher_that_is_publishing_it_marks_nothing() -> None:
    # Marked as published it would be skipped for good, and those behind it would wait for ever.
    aggregate = new_id()
    store_run(aggregate, 3)

    class ParksWhilePublishing(Dispatcher):
        def _record(self, outcome: Any) -> tuple[int, int]:
            assert park(get_first(aggregate).id, "by hand")
            return super()._record(outcome)

    slow = ParksWhilePublishing(new_id(), [RecordingPublisher()])
    assert slow.dispatch_once().published == 0
    slow.release()
    assert list_parked_events().get().aggregate_seq == 1
    assert OutboxEvent.objects.for_tenant(TENANT).filter(published_at=None).count() == 3

    publisher = RecordingPublisher()
    unpark(get_first(aggregate).id)
    drain(build_dispatcher(publisher))
    assert publisher.sequences(aggregate) == [1, 2, 3]

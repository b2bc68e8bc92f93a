"""An operator parks an event that must not go out yet; the dispatcher, which may have it in hand, is shut out."""

from __future__ import annotations

from typing import Any

import pytest

from eventservice.kernel.ids import new_id
from outbox.dispatcher import Dispatcher
from outbox.models import OutboxEvent
from outbox.parking import list_parked_events, park, skip, unpark
from tests.outbox.support import TENANT, RecordingPublisher, build_dispatcher, drain, store_run

pytestmark = pytest.mark.django_db(transaction=True)


def first_of(aggregate_id: Any) -> OutboxEvent:
    found: OutboxEvent = OutboxEvent.objects.for_tenant(TENANT).get(
        aggregate_id=aggregate_id, aggregate_seq=1
    )
    return found


def test_its_aggregate_waits_and_others_flow() -> None:
    held, other = new_id(), new_id()
    store_run(held, 2)
    store_run(other, 2)
    assert park(first_of(held).id, "by hand")
    publisher = RecordingPublisher()
    drain(build_dispatcher(publisher))
    assert publisher.sequences(held) == []
    assert publisher.sequences(other) == [1, 2]
    assert list_parked_events().get().last_error == "by hand"


def test_what_comes_later_waits_too() -> None:
    held = new_id()
    store_run(held, 1)
    park(first_of(held).id, "by hand")
    store_run(held, 2, first=2)
    publisher = RecordingPublisher()
    drain(build_dispatcher(publisher))
    assert publisher.taken == []
    unpark(first_of(held).id)
    drain(build_dispatcher(publisher))
    assert publisher.sequences(held) == [1, 2, 3]


def test_skipping_it_lets_the_others_go() -> None:
    held = new_id()
    store_run(held, 3)
    park(first_of(held).id, "by hand")
    assert skip(first_of(held).id)
    publisher = RecordingPublisher()
    drain(build_dispatcher(publisher))
    assert publisher.sequences(held) == [2, 3]


@pytest.mark.parametrize("before", ["published", "parked", "held", "gone"])
def test_it_is_refused_when_there_is_nothing_to_park(before: str) -> None:
    aggregate = new_id()
    store_run(aggregate, 2)
    key = first_of(aggregate).id
    if before == "published":
        drain(build_dispatcher(RecordingPublisher()))
    elif before == "gone":
        OutboxEvent.objects.for_tenant(TENANT).delete()
    else:
        assert park(key, "by hand")
        key += before == "held"
    assert not park(key, "again")


def test_what_comes_in_behind_a_parked_event_is_not_parked_by_itself() -> None:
    aggregate = new_id()
    store_run(aggregate, 1)
    park(first_of(aggregate).id, "by hand")
    store_run(aggregate, 1, first=2)
    later = OutboxEvent.objects.for_tenant(TENANT).get(aggregate_seq=2)
    assert not park(later.id, "too")
    assert list_parked_events().count() == 1


def test_a_dispatcher_that_has_it_in_hand_marks_nothing_of_it() -> None:
    """Marked as published it would be skipped for good, and those behind it would wait for nobody."""
    aggregate = new_id()
    store_run(aggregate, 3)

    class HasItInHand(Dispatcher):
        def _record(self, verdict: Any) -> tuple[int, int]:
            assert park(first_of(aggregate).id, "by hand")
            return super()._record(verdict)

    slow = HasItInHand(new_id(), [RecordingPublisher()])
    assert slow.dispatch_once().published == 0
    slow.release()
    assert list_parked_events().get().aggregate_seq == 1
    assert OutboxEvent.objects.for_tenant(TENANT).filter(published_at=None).count() == 3

    publisher = RecordingPublisher()
    unpark(first_of(aggregate).id)
    drain(build_dispatcher(publisher))
    assert publisher.sequences(aggregate) == [1, 2, 3]

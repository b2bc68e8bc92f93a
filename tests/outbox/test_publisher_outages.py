"""A publisher that fails pauses its partitions. No event is lost or skipped, and no attempt of an event is counted."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import pytest

from eventservice.kernel.ids import new_id
from outbox.envelope import Envelope
from outbox.models import OutboxEvent
from tests.outbox.support import Clock, RecordingPublisher, build_dispatcher, store_run

pytestmark = pytest.mark.django_db


def test_a_publisher_that_fails_half_way_is_given_the_rest_later() -> None:
    aggregate = new_id()
    store_run(aggregate, 5)
    publisher, clock = RecordingPublisher(), Clock()
    dispatcher = build_dispatcher(publisher, clock=clock)
    publisher.fails_after = 2

    half = dispatcher.dispatch_once()
    assert half.published == 2

    publisher.fails_after = None
    assert dispatcher.dispatch_once().published == 0
    clock.now += half.next_wait
    assert dispatcher.dispatch_once().published == 3
    assert publisher.sequences(aggregate) == [1, 2, 3, 4, 5]


def test_a_paused_partition_is_left_alone_until_its_pause_ends() -> None:
    aggregate = new_id()
    store_run(aggregate, 1)
    publisher, clock = RecordingPublisher(), Clock()
    dispatcher = build_dispatcher(publisher, clock=clock)
    publisher.is_down = True
    paused = dispatcher.dispatch_once()
    publisher.is_down = False

    assert 0.1 <= paused.next_wait <= 0.2
    assert dispatcher.dispatch_once().published == 0
    clock.now += paused.next_wait
    assert dispatcher.dispatch_once().published == 1
    store_run(aggregate, 1, first=2)
    assert dispatcher.dispatch_once().published == 1


def test_pauses_grow_to_half_a_minute_and_count_no_attempts() -> None:
    store_run(new_id(), 1)
    publisher, clock = RecordingPublisher(), Clock()
    dispatcher = build_dispatcher(publisher, clock=clock)
    publisher.is_down = True
    waits = []
    for _ in range(20):
        assert dispatcher.dispatch_once().published == 0
        (pause,) = dispatcher._pauses.values()
        waits.append(pause.until - clock.now)
        clock.now = pause.until

    assert all(15 <= wait <= 30 for wait in waits[-5:])
    event = OutboxEvent.across_tenants.get()
    assert (event.attempts, event.parked_at) == (0, None)


def test_a_bug_in_a_publisher_pauses_its_events_and_loses_none() -> None:
    class Broken(RecordingPublisher):
        def publish(self, events: object) -> None:
            raise KeyError("oops")

    store_run(new_id(), 2)
    done = build_dispatcher(Broken()).dispatch_once()

    assert done.published == 0
    assert OutboxEvent.across_tenants.filter(published_at=None, parked_at=None).count() == 2


def test_one_partition_that_always_fails_does_not_hold_up_the_others() -> None:
    class HalfDown(RecordingPublisher):
        """Fails from the first event of partition 3 on, as if the broker's node for it were down."""

        def publish(self, events: Sequence[Envelope]) -> None:
            numbers = [number for number, event in enumerate(events) if event.partition == 3]
            self.fails_after = numbers[0] if numbers else None
            super().publish(events)

    clock, publisher = Clock(), HalfDown()
    dispatcher = build_dispatcher(publisher, clock=clock)
    for partition in range(16):
        store_run(uuid.UUID(int=16 + partition), 2)
    for _ in range(30):
        # All partitions are attempted together: those after the failing one in a pass fail with it.
        clock.now += 60
        dispatcher.dispatch_once()

    assert len(publisher.accepted) == 30
    assert {event.partition for event in publisher.accepted} == set(range(16)) - {3}

"""Each partition is published by one dispatcher at a time. A dispatcher that has lost it marks none of its events."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import pytest

from eventservice.kernel.ids import new_id
from outbox.dispatcher import Dispatcher
from outbox.envelope import Envelope
from outbox.models import OutboxEvent, OutboxPartition
from tests.outbox.support import Clock, RecordingPublisher, build_dispatcher, drain, store_run

pytestmark = pytest.mark.django_db


def test_a_lone_dispatcher_owns_all_partitions_from_its_first_pass() -> None:
    dispatcher = build_dispatcher(RecordingPublisher())
    dispatcher.dispatch_once()
    assert len(dispatcher.partitions) == 16
    assert OutboxPartition.objects.count() == 16


def test_two_dispatchers_share_them_and_the_first_releases_a_share() -> None:
    owners = [new_id(), new_id()]
    clock = Clock()
    live: list[uuid.UUID] = owners[:1]
    first, second = (Dispatcher(owner, [], live_owners=lambda: live, clock=clock) for owner in owners)
    first.dispatch_once()
    live.append(owners[1])
    second.dispatch_once()
    assert second.partitions == frozenset()

    first.heartbeat()
    clock.now += 1.1
    second.dispatch_once()

    assert first.partitions | second.partitions == frozenset(range(16))
    assert not first.partitions & second.partitions
    assert first.partitions
    assert second.partitions


def test_released_partitions_are_claimed_at_once() -> None:
    first, publisher = build_dispatcher(), RecordingPublisher()
    first.dispatch_once()
    store_run(new_id(), 1)
    assert build_dispatcher(publisher).dispatch_once().published == 0
    first.release()
    assert build_dispatcher(publisher).dispatch_once().published == 1


class LosesItsLease(RecordingPublisher):
    """A publisher during whose call another dispatcher takes over some partitions."""

    def __init__(self, taken_over: Sequence[int]) -> None:
        super().__init__()
        self.taken_over = taken_over

    def publish(self, events: Sequence[Envelope]) -> None:
        super().publish(events)
        OutboxPartition.objects.filter(pk__in=self.taken_over).update(version=1000, owner_id=new_id())


def test_a_dispatcher_that_has_lost_all_leases_marks_nothing() -> None:
    store_run(new_id(), 3)
    publisher = LosesItsLease(range(16))

    done = build_dispatcher(publisher).dispatch_once()

    assert len(publisher.accepted) == 3
    assert done.published == 0
    assert OutboxEvent.across_tenants.filter(published_at=None).count() == 3


def test_a_dispatcher_that_has_lost_one_lease_marks_the_events_of_the_others() -> None:
    events = [store_run(uuid.UUID(int=16 + number), 2) for number in range(16)]
    assert len(events) == 16

    done = build_dispatcher(LosesItsLease([5])).dispatch_once()

    assert done.published == 30
    left = OutboxEvent.across_tenants.filter(published_at=None)
    assert set(left.values_list("partition", flat=True)) == {5}


@pytest.mark.django_db(transaction=True)
def test_a_dispatcher_that_was_frozen_marks_nothing_that_another_has_published(
    elsewhere: Callable[..., Future[Any]],
) -> None:
    aggregate = new_id()
    store_run(aggregate, 3)
    other_publisher = RecordingPublisher()

    class Freezes(RecordingPublisher):
        def publish(self, events: Sequence[Envelope]) -> None:
            super().publish(events)
            OutboxPartition.objects.update(lease_until="2026-01-01T00:00:00Z")
            assert elsewhere(lambda: drain(build_dispatcher(other_publisher))).result(10) == 3

    assert build_dispatcher(Freezes(), lease_length=timedelta(seconds=10)).dispatch_once().published == 0
    assert other_publisher.sequences(aggregate) == [1, 2, 3]

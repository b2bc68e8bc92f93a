"""An event that a publisher rejects is parked after five attempts, and only its own aggregate waits with it."""

from __future__ import annotations

import pytest

from eventservice.kernel.ids import new_id
from outbox.models import OutboxEvent
from outbox.parking import list_parked_events, skip, unpark
from outbox.store import MAX_ATTEMPTS, list_nonempty_partitions
from tests.outbox.support import RecordingPublisher, build_dispatcher, drain, store_run

pytestmark = pytest.mark.django_db


def test_a_poison_event_delays_only_its_own_call() -> None:
    blocked, healthy = new_id(), new_id()
    second = store_run(blocked, 4)[1]
    store_run(healthy, 4)
    publisher = RecordingPublisher()
    publisher.poison = {second.event_id}

    drain(build_dispatcher(publisher))

    assert publisher.sequences(blocked) == [1]
    assert publisher.sequences(healthy) == [1, 2, 3, 4]
    parked = list_parked_events().get()
    assert (parked.event_id, parked.attempts) == (second.event_id, MAX_ATTEMPTS)
    assert parked.last_error == "recording: too large"


def test_it_is_attempted_five_times() -> None:
    poison = store_run(new_id(), 1)[0]
    publisher = RecordingPublisher()
    publisher.poison = {poison.event_id}
    dispatcher = build_dispatcher(publisher)

    assert [dispatcher.dispatch_once().parked for _ in range(5)] == [0, 0, 0, 0, 1]


def test_the_log_names_the_event_its_tenant_and_the_remedy(caplog: pytest.LogCaptureFixture) -> None:
    poison = store_run(new_id(), 1)[0]
    publisher = RecordingPublisher()
    publisher.poison = {poison.event_id}
    drain(build_dispatcher(publisher))

    (line,) = [record.msg for record in caplog.records if isinstance(record.msg, dict)]
    assert {
        "event": "event_parked",
        "tenant_id": str(poison.tenant_id),
        "correlation_id": str(poison.correlation_id),
        "event_id": str(poison.event_id),
        "remedy": f"manage.py outbox retry|skip {list_parked_events().get().pk}",
    }.items() <= line.items()


def test_it_is_published_with_the_others_if_a_later_attempt_succeeds() -> None:
    aggregate = new_id()
    poison = store_run(aggregate, 3)[0]
    publisher = RecordingPublisher()
    publisher.poison = {poison.event_id}
    dispatcher = build_dispatcher(publisher)
    dispatcher.dispatch_once()
    publisher.poison = set()
    drain(dispatcher)

    assert publisher.sequences(aggregate) == [1, 2, 3]


def test_events_that_are_appended_behind_it_wait_too() -> None:
    blocked = new_id()
    poison = store_run(blocked, 1)[0]
    publisher = RecordingPublisher()
    publisher.poison = {poison.event_id}
    dispatcher = build_dispatcher(publisher)
    drain(dispatcher)
    store_run(blocked, 3, first=2)
    drain(dispatcher)

    assert publisher.accepted == []
    assert OutboxEvent.across_tenants.filter(parked_at=None).count() == 0


def test_parked_events_are_not_read_again() -> None:
    blocked = new_id()
    poison = store_run(blocked, 3)[0]
    publisher = RecordingPublisher()
    publisher.poison = {poison.event_id}
    drain(build_dispatcher(publisher))

    assert list_nonempty_partitions(range(16)) == []


def test_the_same_aggregate_id_of_another_tenant_is_published() -> None:
    shared, theirs = new_id(), new_id()
    poison = store_run(shared, 2)[0]
    store_run(shared, 2, tenant_id=theirs)
    publisher = RecordingPublisher()
    publisher.poison = {poison.event_id}
    drain(build_dispatcher(publisher))

    assert [event.tenant_id for event in publisher.accepted] == [theirs, theirs]


def _park_one() -> tuple[RecordingPublisher, OutboxEvent]:
    poison = store_run(new_id(), 3)[0]
    publisher = RecordingPublisher()
    publisher.poison = {poison.event_id}
    drain(build_dispatcher(publisher))
    publisher.poison = set()
    return publisher, list_parked_events().get()


def test_an_unparked_event_is_published_with_those_behind_it() -> None:
    publisher, parked = _park_one()
    assert unpark(parked.id)
    drain(build_dispatcher(publisher))
    assert publisher.sequences(parked.aggregate_id) == [1, 2, 3]


def test_a_skipped_event_is_left_out_and_those_behind_it_are_published() -> None:
    publisher, parked = _park_one()
    assert skip(parked.id)
    drain(build_dispatcher(publisher))
    assert publisher.sequences(parked.aggregate_id) == [2, 3]


def test_an_event_that_is_held_can_be_neither_unparked_nor_skipped() -> None:
    _, parked = _park_one()
    waiting = OutboxEvent.objects.for_tenant(parked.tenant_id).get(aggregate_seq=2)
    assert not unpark(waiting.id)
    assert not skip(waiting.id)
    assert not unpark(-1)

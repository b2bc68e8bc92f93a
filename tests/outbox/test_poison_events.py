"""An event that the other side will never take is parked after five tries, and with it its aggregate alone."""

from __future__ import annotations

import pytest

from eventservice.kernel.ids import new_id
from outbox.models import OutboxEvent
from outbox.parking import list_parked_events, skip, unpark
from outbox.store import MAX_ATTEMPTS, list_nonempty_partitions
from tests.outbox.support import RecordingPublisher, build_dispatcher, drain, store_run

pytestmark = pytest.mark.django_db


def test_its_aggregate_waits_and_all_others_flow() -> None:
    sick, well = new_id(), new_id()
    second = store_run(sick, 4)[1]
    store_run(well, 4)
    publisher = RecordingPublisher()
    publisher.poison = {second.event_id}

    drain(build_dispatcher(publisher))

    assert publisher.sequences(sick) == [1]
    assert publisher.sequences(well) == [1, 2, 3, 4]
    parked = list_parked_events().get()
    assert (parked.event_id, parked.attempts) == (second.event_id, MAX_ATTEMPTS)
    assert parked.last_error == "remembering: too large"


def test_it_is_given_five_tries() -> None:
    poison = store_run(new_id(), 1)[0]
    publisher = RecordingPublisher()
    publisher.poison = {poison.event_id}
    one = build_dispatcher(publisher)

    assert [one.dispatch_once().parked for _ in range(5)] == [0, 0, 0, 0, 1]


def test_the_log_tells_whose_event_it_is_and_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
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


def test_it_flows_with_the_others_if_a_later_try_succeeds() -> None:
    aggregate = new_id()
    poison = store_run(aggregate, 3)[0]
    publisher = RecordingPublisher()
    publisher.poison = {poison.event_id}
    one = build_dispatcher(publisher)
    one.dispatch_once()
    publisher.poison = set()
    drain(one)

    assert publisher.sequences(aggregate) == [1, 2, 3]


def test_events_that_are_appended_behind_it_wait_too() -> None:
    sick = new_id()
    poison = store_run(sick, 1)[0]
    publisher = RecordingPublisher()
    publisher.poison = {poison.event_id}
    one = build_dispatcher(publisher)
    drain(one)
    store_run(sick, 3, first=2)
    drain(one)

    assert publisher.taken == []
    assert OutboxEvent.across_tenants.filter(parked_at=None).count() == 0


def test_what_is_parked_is_not_looked_at_again() -> None:
    sick = new_id()
    poison = store_run(sick, 3)[0]
    publisher = RecordingPublisher()
    publisher.poison = {poison.event_id}
    drain(build_dispatcher(publisher))

    assert list_nonempty_partitions(range(16)) == []


def test_the_same_aggregate_id_of_another_tenant_flows() -> None:
    shared, theirs = new_id(), new_id()
    poison = store_run(shared, 2)[0]
    store_run(shared, 2, tenant_id=theirs)
    publisher = RecordingPublisher()
    publisher.poison = {poison.event_id}
    drain(build_dispatcher(publisher))

    assert [event.tenant_id for event in publisher.taken] == [theirs, theirs]


def _parked() -> tuple[RecordingPublisher, OutboxEvent]:
    poison = store_run(new_id(), 3)[0]
    publisher = RecordingPublisher()
    publisher.poison = {poison.event_id}
    drain(build_dispatcher(publisher))
    publisher.poison = set()
    return publisher, list_parked_events().get()


def test_unparked_it_is_published_and_those_behind_it_follow() -> None:
    publisher, parked = _parked()
    assert unpark(parked.id)
    drain(build_dispatcher(publisher))
    assert publisher.sequences(parked.aggregate_id) == [1, 2, 3]


def test_skipped_it_is_left_out_and_those_behind_it_follow() -> None:
    publisher, parked = _parked()
    assert skip(parked.id)
    drain(build_dispatcher(publisher))
    assert publisher.sequences(parked.aggregate_id) == [2, 3]


def test_what_only_waits_can_be_neither_unparked_nor_skipped() -> None:
    _, parked = _parked()
    waiting = OutboxEvent.objects.for_tenant(parked.tenant_id).get(aggregate_seq=2)
    assert not unpark(waiting.id)
    assert not skip(waiting.id)
    assert not unpark(-1)

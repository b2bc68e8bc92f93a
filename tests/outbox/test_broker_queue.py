"""Each broker has a queue of its own: trouble with one delays no other publisher, and loses and reorders nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from io import StringIO
from uuid import UUID

import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings

from eventservice.db.now import db_now
from eventservice.kernel.findings import Severity
from eventservice.kernel.ids import new_id
from eventservice.operators.health import check_brokers
from outbox.broker_queue import IDLE_SECONDS, BrokerQueue, BrokerSender, list_backlogs
from outbox.envelope import Envelope
from outbox.models import BrokerQueueEntry, OutboxEvent
from outbox.parking import list_parked_events, skip, unpark
from outbox.publisher_spec import PublisherSpec
from outbox.replay import replay
from outbox.retention import delete_published_events, prune
from outbox.status import get_status
from outbox.store import read_broker_queue
from outbox.writer import PARTITIONS
from tests.outbox.support import OTHER_TENANT, TENANT, Clock, RecordingPublisher, build_dispatcher, store_run

pytestmark = pytest.mark.django_db(transaction=True)

LONG_SECONDS = 30.0


class RecordingBroker(RecordingPublisher):
    """A broker that can be made to hang."""

    def __init__(self, name: str = "main") -> None:
        super().__init__()
        self.name = name
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.is_closed = False

    def publish(self, events: Sequence[Envelope]) -> None:
        assert self.may_answer.wait(LONG_SECONDS)
        super().publish(events)

    def close(self) -> None:
        self.is_closed = True


class System:
    """A dispatcher with brokers, without the process around it."""

    def __init__(self, *brokers: RecordingBroker) -> None:
        self.clock = Clock()
        self.log = RecordingPublisher()
        self.dispatcher = build_dispatcher(self.log, *(BrokerQueue(broker.name) for broker in brokers))
        self.senders = [BrokerSender(broker, clock=self.clock) for broker in brokers]

    def publish(self) -> int:
        published = self.dispatcher.dispatch_once().published
        for sender in self.senders:
            sender.expect_events()
            sender.send_once(self.dispatcher.partitions, self.dispatcher.fence)
        return published

    def send(self, number: int = 0) -> None:
        """Send until the queue is empty or the broker has failed."""
        sender = self.senders[number]
        wait_until(lambda: self._send_step(sender))

    def _send_step(self, sender: BrokerSender) -> bool:
        sender.send_once(self.dispatcher.partitions, self.dispatcher.fence)
        return sender.is_resting


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONG_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
def broker() -> Iterator[RecordingBroker]:
    broker = RecordingBroker()
    yield broker
    broker.may_answer.set()


def count_queued(name: str = "main") -> int:
    return BrokerQueueEntry.objects.filter(publisher=name).count()


def test_a_broker_that_hangs_holds_back_no_other_publisher(broker: RecordingBroker) -> None:
    other = RecordingBroker("other")
    system = System(broker, other)
    broker.may_answer.clear()
    aggregate = new_id()
    for first in (1, 4, 7):
        store_run(aggregate, 3, first)
        assert system.publish() == 3
        system.send(1)
    assert system.log.sequences(aggregate) == other.sequences(aggregate) == [*range(1, 10)]
    assert broker.accepted == []
    assert (count_queued("main"), count_queued("other")) == (9, 0)
    broker.may_answer.set()
    system.send()
    assert broker.sequences(aggregate) == [*range(1, 10)]
    assert count_queued() == 0


def test_a_broker_that_fails_gets_everything_afterwards_in_order(broker: RecordingBroker) -> None:
    system = System(broker)
    broker.is_down = True
    aggregates = [new_id() for _ in range(5)]
    for first in (1, 3, 5):
        for aggregate in aggregates:
            store_run(aggregate, 2, first)
        assert system.publish() == 10
        system.send()
    assert count_queued() == 30
    broker.is_down = False
    broker.fails_after = 7
    system.clock.now += 60
    system.send()
    assert len(broker.accepted) == 7
    assert count_queued() == 23
    broker.fails_after = None
    system.clock.now += 60
    system.send()
    assert all(broker.sequences(aggregate) == [1, 2, 3, 4, 5, 6] for aggregate in aggregates)


def test_nothing_is_lost_if_no_thread_can_be_started(
    broker: RecordingBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    system = System(broker)
    store_run(new_id(), 3)
    with monkeypatch.context() as limit:
        limit.setattr(threading.Thread, "start", refuse)
        system.publish()
    assert count_queued() == 3
    assert system.senders[0].compute_wait() > 0
    system.clock.now += 60
    system.send()
    assert (count_queued(), len(broker.accepted)) == (0, 3)


def test_the_pauses_after_failures_grow(broker: RecordingBroker) -> None:
    system = System(broker)
    broker.is_down = True
    store_run(new_id(), 1)
    system.publish()
    waits = []
    for _ in range(12):
        system.send()
        waits.append(system.senders[0].compute_wait())
        system.senders[0].expect_events()  # a new event does not end the pause
        assert system.senders[0].compute_wait() == waits[-1]
        system.clock.now += waits[-1]
    assert 0 < waits[0] < 1
    assert 10 < waits[-1] <= 30


def test_another_dispatcher_sends_what_a_dead_one_has_stored(broker: RecordingBroker) -> None:
    aggregate = new_id()
    dead = System(broker)
    store_run(aggregate, 3)
    assert dead.dispatcher.dispatch_once().published == 3
    dead.dispatcher.release()
    heir = System(broker)
    heir.dispatcher.dispatch_once()
    heir.clock.now += IDLE_SECONDS
    heir.send()
    assert broker.sequences(aggregate) == [1, 2, 3]


def test_only_the_owner_of_a_partition_sends_its_events(broker: RecordingBroker) -> None:
    owner, other = System(broker), System(broker)
    store_run(new_id(), 3)
    owner.dispatcher.dispatch_once()
    assert not other.dispatcher.dispatch_once().published
    other.send()
    assert broker.accepted == []
    owner.send()
    assert len(broker.accepted) == 3


def test_dispatchers_share_a_queue_by_their_partitions(broker: RecordingBroker) -> None:
    both = System(broker)
    for _ in range(40):
        store_run(new_id(), 2)
    both.dispatcher.dispatch_once()
    queued = BrokerQueueEntry.objects.filter(publisher="main")
    assert {entry.partition % 2 for entry in queued} == {0, 1}
    for odd in (1, 0):
        before = len(broker.accepted)
        events = read_broker_queue("main", range(odd, PARTITIONS, 2), 100)
        broker.publish(events)
        assert {event.partition % 2 for event in broker.accepted[before:]} == {odd}
        assert [event.id for event in events] == sorted(event.id for event in events)
    assert len(broker.accepted) == 80
    assert len(read_broker_queue("main", range(PARTITIONS), 7)) == 7


def test_an_event_that_is_refused_is_parked_with_those_behind_it(broker: RecordingBroker) -> None:
    other = RecordingBroker("other")
    system = System(broker, other)
    refused, fine = new_id(), new_id()
    events = store_run(refused, 4)
    store_run(fine, 4)
    broker.poison = {events[1].event_id}
    system.publish()
    system.send()
    system.send(1)
    store_run(refused, 1, 5)
    system.publish()
    system.send()

    assert (broker.sequences(refused), broker.sequences(fine)) == ([1], [1, 2, 3, 4])
    assert other.sequences(refused) == [1, 2, 3, 4]
    (parked,) = list_parked_events()
    assert (parked.event_id, parked.last_error) == (events[1].event_id, "main: too large")
    assert list_states(refused) == ["Published", "Parked", "Held", "Held", "Held"]
    assert count_queued() == 0

    broker.poison = set()
    assert unpark(parked.id)
    system.publish()
    system.send()
    assert broker.sequences(refused) == [1, 2, 3, 4, 5]
    assert list_states(refused) == ["Published"] * 5


def test_a_refused_event_can_be_skipped(broker: RecordingBroker) -> None:
    system = System(broker)
    aggregate = new_id()
    events = store_run(aggregate, 3)
    broker.poison = {events[0].event_id}
    system.publish()
    system.send()
    (parked,) = list_parked_events()
    assert skip(parked.id)
    system.publish()
    system.send()
    assert broker.sequences(aggregate) == [2, 3]
    assert list_states(aggregate) == ["Skipped", "Published", "Published"]


def test_a_dispatcher_that_has_lost_a_partition_parks_nothing(broker: RecordingBroker) -> None:
    system = System(broker)
    aggregate = new_id()
    events = store_run(aggregate, 2)
    broker.poison = {events[0].event_id}
    system.publish()
    system.dispatcher.release()
    wait_until(lambda: system.senders[0].compute_wait() == 0)
    system.senders[0].send_once(system.dispatcher.partitions, system.dispatcher.fence)
    assert not list_parked_events().exists()
    assert count_queued() == 2


def list_states(aggregate_id: UUID) -> list[str]:
    events = OutboxEvent.objects.for_tenant(TENANT).filter(aggregate_id=aggregate_id)
    return [event.state for event in events.order_by("aggregate_seq")]


def test_a_repeat_of_an_event_in_the_queue_is_sent_once(broker: RecordingBroker) -> None:
    system = System(broker)
    broker.is_down = True
    aggregate = new_id()
    store_run(aggregate, 2)
    system.publish()
    assert replay(db_now() - timedelta(days=3650), None) == 2
    assert system.publish() == 2
    assert count_queued() == 2
    broker.is_down = False
    system.clock.now += 60
    system.send()
    assert broker.sequences(aggregate) == [1, 2]


def test_retention_keeps_events_that_a_broker_has_not_accepted(broker: RecordingBroker) -> None:
    system = System(broker)
    waiting, deleted = new_id(), new_id()
    store_run(waiting, 2)
    store_run(deleted, 2, tenant_id=OTHER_TENANT)
    system.dispatcher.dispatch_once()
    OutboxEvent.across_tenants.update(published_at=db_now() - timedelta(days=2))
    assert sum(prune(timedelta(days=1))) == 0
    delete_published_events(OTHER_TENANT, deleted)
    assert OutboxEvent.across_tenants.count() == 4
    system.clock.now += IDLE_SECONDS
    system.send()
    delete_published_events(OTHER_TENANT, deleted)
    assert OutboxEvent.across_tenants.count() == 2
    assert sum(prune(timedelta(days=1))) == 2


def test_the_batch_in_flight_is_recorded_when_the_sender_closes(broker: RecordingBroker) -> None:
    system = System(broker)
    broker.may_answer.clear()
    store_run(new_id(), 2)
    system.publish()
    threading.Timer(0.1, broker.may_answer.set).start()
    system.senders[0].close(LONG_SECONDS)
    assert count_queued() == 0
    assert broker.is_closed


def test_a_broker_that_hangs_does_not_delay_the_end_of_the_process(broker: RecordingBroker) -> None:
    system = System(broker)
    broker.may_answer.clear()
    store_run(new_id(), 2)
    system.publish()
    system.senders[0].close(0.0)
    assert count_queued() == 2


def test_operators_see_what_waits_and_why(broker: RecordingBroker) -> None:
    system = System(broker)
    broker.is_down = True
    store_run(new_id(), 3)
    system.publish()
    system.send()
    (backlog,) = list_backlogs(2)
    assert (backlog.publisher, backlog.count, backlog.last_error) == ("main", 3, "the broker is unavailable")
    with override_settings(PUBLISHERS=[PublisherSpec.parse("main=redis://b.test")]):
        (finding,) = check_brokers(get_status())
    assert finding.severity is Severity.ERROR  # the events of the tests are old
    assert finding.text.startswith("3 events for the publisher main, the oldest for ")
    assert finding.text.endswith(" the broker is unavailable")
    assert "broker main  3 (oldest: " in run_command("status")


def test_the_queue_of_a_publisher_that_is_gone_is_reported_and_can_be_discarded(
    broker: RecordingBroker,
) -> None:
    system = System(broker, RecordingBroker("other"))
    store_run(new_id(), 3)
    system.dispatcher.dispatch_once()
    with override_settings(PUBLISHERS=[PublisherSpec.parse("other=redis://b.test")]):
        remedies = [finding.remedy for finding in check_brokers(get_status())]
        with pytest.raises(CommandError, match="still being published"):
            run_command("discard", "other")
        with pytest.raises(CommandError, match="There is no queue of a publisher 'nosuch'"):
            run_command("discard", "nosuch")
        assert run_command("discard", "main") == "3 events discarded.\n"
    assert "manage.py outbox discard main" in remedies[0]
    assert (count_queued("main"), count_queued("other")) == (0, 3)


def run_command(*arguments: str) -> str:
    out = StringIO()
    call_command("outbox", *arguments, stdout=out)
    return out.getvalue()


def test_nothing_waits_in_a_healthy_system() -> None:
    (finding,) = check_brokers(get_status())
    assert finding.is_ok

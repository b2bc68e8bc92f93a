"""Every publisher to a broker, against the real server and in trouble. test_publishers.py has what holds for all publishers."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from eventservice.kernel.ids import new_id
from outbox.envelope import Envelope
from outbox.publisher import PoisonEvent, PublishError
from outbox.store import read_heads
from outbox.writer import PARTITIONS
from tests.contracts.brokers import BROKERS, Broker
from tests.outbox.support import store_run
from tests.tcp_proxy import Trouble

pytestmark = pytest.mark.django_db(transaction=True)

LONG_SECONDS = 30.0


@pytest.fixture(params=BROKERS)
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    broker = BROKERS[request.param]()
    yield broker
    broker.close()


def create_events(count: int, **data: object) -> list[Envelope]:
    """Return the new events of a new aggregate."""
    aggregate_id = new_id()
    store_run(aggregate_id, count, data=data or {"name": "Zoë"})
    stored, _ = read_heads(range(PARTITIONS), 1000)
    return [event for event in stored if event.aggregate_id == aggregate_id]


def list_ids(events: list[Envelope]) -> list[str]:
    return [str(event.event_id) for event in events]


def list_accepted_ids(broker: Broker) -> list[str]:
    """Return the ids of the accepted events, without those of repeats."""
    return list(dict.fromkeys(event["id"] for event in broker.list_accepted()))


def test_the_event_id_is_the_deduplication_id(broker: Broker) -> None:
    events = create_events(3)
    broker.build().publish(events)
    assert broker.list_deduplication_ids() == list_ids(events)


def test_a_large_batch_keeps_its_order(broker: Broker) -> None:
    events = create_events(700, text="x" * 4000)
    broker.build().publish(events)
    assert [event["id"] for event in broker.list_accepted()] == list_ids(events)


def test_an_idle_connection_is_used_again(broker: Broker) -> None:
    publisher = broker.build()
    publisher.publish(create_events(1))
    before = broker.count_connections()
    publisher.publish(create_events(1))
    assert broker.count_connections() == before


def test_what_is_reported_as_accepted_after_an_outage_is_accepted(broker: Broker) -> None:
    """The server is unavailable for seconds, in the middle of a stream of events."""
    events = create_events(60)
    publisher = broker.build("timeout=1")
    accepted = failures = 0
    publisher.publish(events[:5])
    accepted = 5
    outage = threading.Thread(target=make_trouble, args=(broker, Trouble.REFUSE, 2.0))
    outage.start()
    deadline = time.monotonic() + LONG_SECONDS
    while accepted < len(events) and time.monotonic() < deadline:
        batch = events[accepted : accepted + 5]
        try:
            publisher.publish(batch)
            accepted += len(batch)
        except PublishError as error:
            accepted += error.accepted
            failures += 1
            time.sleep(0.1)
        time.sleep(0.01)
    outage.join()
    assert accepted == len(events)
    assert failures
    assert list_accepted_ids(broker) == list_ids(events)


def make_trouble(broker: Broker, trouble: Trouble, seconds: float) -> None:
    with broker.proxy.make_trouble(trouble, seconds):
        pass


@pytest.mark.parametrize("trouble", [Trouble.SWALLOW, Trouble.HOLD], ids=lambda trouble: trouble.value)
def test_a_broker_that_does_not_answer_fails_within_the_timeout(broker: Broker, trouble: Trouble) -> None:
    publisher = broker.build("timeout=0.5")
    publisher.publish(create_events(1))
    events = create_events(2)
    started = time.monotonic()
    with broker.proxy.make_trouble(trouble, 0), pytest.raises(PublishError) as raised:
        publisher.publish(events)
    assert time.monotonic() - started < LONG_SECONDS
    assert raised.value.accepted == 0
    assert not isinstance(raised.value, PoisonEvent)
    publisher.publish(events)
    assert list_accepted_ids(broker)[-2:] == list_ids(events)


def test_a_connection_that_a_firewall_forgot_is_replaced(broker: Broker) -> None:
    publisher = broker.build("timeout=0.5")
    first, second = create_events(1), create_events(1)
    publisher.publish(first)
    broker.proxy.set_trouble(Trouble.FORGET)
    with pytest.raises(PublishError):
        publisher.publish(second)
    publisher.publish(second)
    assert list_accepted_ids(broker) == list_ids([*first, *second])


def test_a_slow_broker_accepts_events(broker: Broker) -> None:
    events = create_events(20)
    with broker.proxy.make_trouble(Trouble.SLOW, 0):
        broker.build("timeout=30").publish(events)
    assert list_accepted_ids(broker) == list_ids(events)


def test_a_wrong_password_delays_events_and_is_not_shown(broker: Broker) -> None:
    publisher = broker.build(credentials=broker.get_wrong_credentials())
    with pytest.raises(PublishError) as raised:
        publisher.publish(create_events(1))
    assert not isinstance(raised.value, PoisonEvent)
    assert raised.value.accepted == 0
    assert "wrong-password" not in str(raised.value)
    assert broker.list_accepted() == []


def test_a_missing_stream_delays_events(broker: Broker) -> None:
    publisher = broker.build(broker.missing)
    events = create_events(2)
    with pytest.raises(PublishError) as raised:
        publisher.publish(events)
    assert not isinstance(raised.value, PoisonEvent)
    assert raised.value.accepted == 0
    broker.build().publish(events)
    assert list_accepted_ids(broker) == list_ids(events)


def test_an_event_that_is_too_large_is_refused_and_those_before_it_are_accepted(broker: Broker) -> None:
    small, large, later = create_events(2), create_events(1, text="x" * 20_000), create_events(1)
    publisher = broker.build("max_event_bytes=10000")
    with pytest.raises(PoisonEvent) as raised:
        publisher.publish([*small, *large, *later])
    assert raised.value.accepted == 2
    assert list_accepted_ids(broker) == list_ids(small)
    publisher.publish(later)
    assert list_accepted_ids(broker) == list_ids([*small, *later])

"""The behavior that is particular to Kafka."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from outbox.publisher import PoisonEvent
from tests.contracts.brokers.kafka import KafkaBroker
from tests.contracts.test_brokers import create_events, list_accepted_ids, list_ids

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def broker() -> Iterator[KafkaBroker]:
    broker = KafkaBroker()
    yield broker
    broker.close()


def create_topic(broker: KafkaBroker, partitions: int, **config: str) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient(broker.build_options())
    topic = NewTopic(broker.name, num_partitions=partitions, replication_factor=1, config=config)
    for created in admin.create_topics([topic]).values():
        created.result(30)


def test_a_message_has_the_key_of_its_aggregate(broker: KafkaBroker) -> None:
    (event,) = create_events(1)
    broker.build().publish([event])
    (message,) = broker.list_messages()
    assert message.key().decode() == f"{event.tenant_id}/{event.aggregate_id}"
    assert {name: value.decode() for name, value in message.headers()} == {
        "content-type": "application/cloudevents+json; charset=UTF-8",
        "id": str(event.event_id),
        "source": f"/tenants/{event.tenant_id}",
        "type": "ServiceCallSubmitted",
    }
    assert message.value() == event.to_json().encode()


def test_events_of_an_aggregate_are_in_one_partition(broker: KafkaBroker) -> None:
    create_topic(broker, partitions=4)
    broker.build().publish(create_events(20))
    offsets = broker.list_offsets(4)
    assert sorted(offsets) == [0, 0, 0, 20]


def test_an_event_that_is_too_large_for_the_topic_is_refused(broker: KafkaBroker) -> None:
    create_topic(broker, partitions=1, **{"max.message.bytes": "10000"})
    small, large = create_events(2), create_events(1, text="x" * 20_000)
    with pytest.raises(PoisonEvent, match=r"max\.message\.bytes of the topic") as raised:
        broker.build().publish([*small, *large])
    assert raised.value.accepted == 2
    assert list_accepted_ids(broker) == list_ids(small)

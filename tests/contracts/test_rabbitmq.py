"""The behavior that is particular to RabbitMQ."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from django.conf import settings

from outbox.publisher import PublishError
from tests.contracts.brokers.rabbitmq import RabbitMqBroker
from tests.contracts.test_brokers import create_events, list_accepted_ids, list_ids
from tests.services import find_tool

DOCUMENTATION = settings.BASE_DIR / "docs" / "brokers.md"

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def broker() -> Iterator[RabbitMqBroker]:
    broker = RabbitMqBroker()
    yield broker
    broker.close()


class User:
    """A user of the server with permissions of its own."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.credentials = f"{name}:secret"
        self._control = find_tool("rabbitmq", "rabbitmqctl")
        self._run("add_user", name, "secret")

    def permit(self, configure: str, write: str, read: str) -> None:
        self._run("set_permissions", "-p", "/", self.name, configure, write, read)

    def delete(self) -> None:
        self._run("delete_user", self.name)

    def _run(self, *command: str) -> None:
        subprocess.run([*self._control, "--quiet", *command], check=True, capture_output=True)


@pytest.fixture
def user(broker: RabbitMqBroker) -> Iterator[User]:
    user = User(broker.name)
    yield user
    user.delete()


def test_a_missing_permission_is_named_and_delays_events(broker: RabbitMqBroker, user: User) -> None:
    """The patterns are those of the documentation, which are permitted one after the other."""
    (patterns,) = re.findall(r"set_permissions -p / events '(.*)' '(.*)' '(.*)'", DOCUMENTATION.read_text())
    configure, write, read = (pattern.replace(r"eventservice\.events", broker.name) for pattern in patterns)
    events, nothing = create_events(3), "^$"
    publisher = broker.build(credentials=user.credentials)
    for missing, permitted in {
        "configure on the exchange": (nothing, write, read),
        "write on the queue and read on the exchange": (configure, nothing, nothing),
    }.items():
        user.permit(*permitted)
        with pytest.raises(PublishError, match=f"{broker.name}.*needs the permission {missing}") as raised:
            publisher.publish(events)
        assert raised.value.accepted == 0

    user.permit(configure, write, read)
    publisher.publish(events)
    user.permit(nothing, nothing, nothing)
    forbidden = broker.build("create=false", credentials=user.credentials)
    with pytest.raises(PublishError, match="needs the permission write on the exchange") as raised:
        forbidden.publish(create_events(3))
    assert raised.value.accepted == 0
    assert list_accepted_ids(broker) == list_ids(events)


def test_a_message_is_persistent_and_says_what_it_is(broker: RabbitMqBroker) -> None:
    (event,) = create_events(1)
    broker.build().publish([event])
    (message,) = broker.list_messages()
    assert message.delivery.exchange == broker.name
    assert message.delivery.routing_key == f"{event.tenant_id}.ServiceCallSubmitted"
    properties = message.header.properties
    assert properties.content_type == "application/cloudevents+json; charset=UTF-8"
    assert properties.message_type == event.type
    assert properties.delivery_mode == 2
    assert message.body == event.to_json().encode()


def test_the_queue_is_a_quorum_queue(broker: RabbitMqBroker) -> None:
    broker.build().publish(create_events(1))

    async def declare_another_kind(channel: Any) -> None:
        await channel.queue_declare(broker.name, durable=True, arguments={"x-queue-type": "classic"})

    with pytest.raises(Exception, match=r"inequivalent arg 'x-queue-type'.*'quorum'"):
        broker.use(declare_another_kind)


def test_an_event_that_no_queue_gets_is_delayed(broker: RabbitMqBroker) -> None:
    async def declare_exchange(channel: Any) -> None:
        await channel.exchange_declare(broker.name, exchange_type="topic", durable=True)

    broker.use(declare_exchange)
    events = create_events(2)
    with pytest.raises(PublishError, match=f"no queue is bound to the exchange {broker.name}") as raised:
        broker.build("create=false").publish(events)
    assert raised.value.accepted == 0
    broker.build().publish(events)
    assert list_accepted_ids(broker) == list_ids(events)


def test_a_queue_that_is_full_delays_events_and_keeps_their_order(broker: RabbitMqBroker) -> None:
    async def declare_full_queue(channel: Any) -> None:
        await channel.exchange_declare(broker.name, exchange_type="topic", durable=True)
        arguments = {"x-queue-type": "quorum", "x-max-length": 3, "x-overflow": "reject-publish"}
        await channel.queue_declare(broker.name, durable=True, arguments=arguments)
        await channel.queue_bind(broker.name, broker.name, routing_key="#")

    broker.use(declare_full_queue)
    events = create_events(20)
    with pytest.raises(PublishError, match="a queue has refused the event") as raised:
        broker.build("create=false").publish(events)
    assert 3 <= raised.value.accepted < 20
    assert list_accepted_ids(broker) == list_ids(events[: raised.value.accepted])


def test_a_queue_of_another_kind_delays_events(broker: RabbitMqBroker) -> None:
    async def declare_another_kind(channel: Any) -> None:
        await channel.queue_declare(broker.name, durable=True, arguments={"x-queue-type": "classic"})

    broker.use(declare_another_kind)
    with pytest.raises(PublishError, match="inequivalent arg 'x-queue-type'"):
        broker.build().publish(create_events(1))

"""The behavior that is particular to NATS."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outbox.publisher import PoisonEvent, PublishError
from outbox.publisher_spec import BrokerUrl
from outbox.publishers import build_broker
from tests.contracts.brokers.nats import NatsBroker
from tests.contracts.test_brokers import create_events, list_accepted_ids, list_ids
from tests.contracts.tls_servers import find_free_ports, find_program, run

pytestmark = pytest.mark.django_db(transaction=True)


DOCUMENTATION = Path(__file__).parents[2] / "docs" / "brokers.md"


@pytest.fixture
def broker() -> Iterator[NatsBroker]:
    broker = NatsBroker()
    yield broker
    broker.close()


def test_the_subject_names_tenant_and_type(broker: NatsBroker) -> None:
    (event,) = create_events(1)
    broker.build().publish([event])
    (message,) = broker.list_messages()
    assert message.subject == f"{broker.name}.{event.tenant_id}.ServiceCallSubmitted"
    assert message.headers["Content-Type"] == "application/cloudevents+json; charset=UTF-8"
    assert message.data == event.to_json().encode()


def test_the_stream_drops_repeats(broker: NatsBroker) -> None:
    events = create_events(2)
    publisher = broker.build()
    publisher.publish(events)
    publisher.publish(events)
    assert [event["id"] for event in broker.list_accepted()] == list_ids(events)


def test_a_stream_that_exists_is_used_as_it_is(broker: NatsBroker) -> None:
    async def create(jetstream: Any) -> None:
        await jetstream.add_stream(name=broker.name, subjects=[f"{broker.name}.>"], max_msgs=3)

    broker.use(create)
    events = create_events(5)
    broker.build().publish(events)
    assert list_accepted_ids(broker) == list_ids(events[2:])


def test_a_stream_that_is_full_delays_events_and_keeps_their_order(broker: NatsBroker) -> None:
    async def create(jetstream: Any) -> None:
        await jetstream.add_stream(name=broker.name, subjects=[f"{broker.name}.>"], max_msgs=3, discard="new")

    broker.use(create)
    events = create_events(5)
    with pytest.raises(PublishError, match="maximum messages exceeded") as raised:
        broker.build().publish(events)
    assert not isinstance(raised.value, PoisonEvent)
    assert raised.value.accepted == 3
    assert list_accepted_ids(broker) == list_ids(events[:3])


def test_an_event_that_is_too_large_for_the_stream_is_refused(broker: NatsBroker) -> None:
    async def create(jetstream: Any) -> None:
        await jetstream.add_stream(name=broker.name, subjects=[f"{broker.name}.>"], max_msg_size=10_000)

    broker.use(create)
    small, large = create_events(2), create_events(1, text="x" * 20_000)
    with pytest.raises(PoisonEvent, match="max_msg_size of the stream") as raised:
        broker.build().publish([*small, *large])
    assert raised.value.accepted == 2


def test_an_event_that_is_too_large_for_the_server_is_refused(broker: NatsBroker) -> None:
    small, large = create_events(2), create_events(1, text="x" * 1024 * 1024)
    with pytest.raises(PoisonEvent, match="more than 1048064 bytes") as raised:
        broker.build().publish([*small, *large])
    assert raised.value.accepted == 2
    assert list_accepted_ids(broker) == list_ids(small)


@pytest.mark.parametrize("credentials", ["events:secret@", "a-token@"])
def test_the_documented_permissions_are_enough(credentials: str, tmp_path: Path) -> None:
    permissions = re.findall(r"^    ((?:publish|subscribe): \[.*\])$", DOCUMENTATION.read_text(), re.M)
    assert len(permissions) == 2
    user = f"users: [{{user: events, password: secret, permissions: {{\n{', '.join(permissions)}\n}}}}]"
    authorization = user if credentials.startswith("events") else "token: a-token"
    (port,) = find_free_ports(1)
    config = tmp_path / "nats.conf"
    config.write_text(
        f'listen: "127.0.0.1:{port}"\njetstream {{store_dir: "{tmp_path}"}}\nauthorization {{\n{authorization}\n}}\n'
    )
    with run(tmp_path, port, [find_program("nats-server"), "-c", config]):
        publisher = build_broker("main", BrokerUrl.parse(f"nats://{credentials}127.0.0.1:{port}"))
        publisher.publish(create_events(2))
        publisher.close()

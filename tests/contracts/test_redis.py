"""The behavior that is particular to Redis."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from outbox.publisher import PublishError
from tests.contracts.brokers.redis import RedisBroker
from tests.contracts.test_brokers import create_events, list_accepted_ids, list_ids

pytestmark = pytest.mark.django_db(transaction=True)

DOCUMENTATION = Path(__file__).parents[2] / "docs" / "brokers.md"


@pytest.fixture
def broker() -> Iterator[RedisBroker]:
    broker = RedisBroker()
    yield broker
    broker.close()


@pytest.fixture
def user(broker: RedisBroker) -> Iterator[str]:
    """Create the user of the documentation, for this test's stream, and return its name and password as in a URL."""
    (rules,) = re.findall(r"ACL SETUSER events (.*)", DOCUMENTATION.read_text())
    rules = rules.replace("~eventservice:events", f"~{broker.name}").replace(">secret", f">{broker.name}")
    broker.client.execute_command("ACL", "SETUSER", broker.name, *rules.split())
    yield f"{broker.name}:{broker.name}"
    broker.client.acl_deluser(broker.name)


def test_the_documented_user_may_publish_and_nothing_else(broker: RedisBroker, user: str) -> None:
    events = create_events(2)
    broker.build(credentials=user).publish(events)
    assert list_accepted_ids(broker) == list_ids(events)
    stream, broker.name = broker.name, "another-stream"
    forbidden = broker.build(credentials=user)
    broker.name = stream
    with pytest.raises(PublishError, match="permission"):
        forbidden.publish(events)


def test_a_stream_has_a_maximum_length_if_the_url_says_so(broker: RedisBroker) -> None:
    broker.build("maxlen=100").publish(create_events(600))
    assert 100 <= len(broker.list_accepted()) < 300


def test_an_entry_names_its_event_beside_the_document(broker: RedisBroker) -> None:
    (event,) = create_events(1)
    broker.build().publish([event])
    ((_, fields),) = broker.client.xrange(broker.name)
    assert {name.decode(): value.decode() for name, value in fields.items()} == {
        "id": str(event.event_id),
        "source": f"/tenants/{event.tenant_id}",
        "type": event.type,
        "event": event.to_json(),
    }


def test_a_key_that_is_no_stream_delays_events(broker: RedisBroker) -> None:
    broker.client.set(broker.name, "text")
    with pytest.raises(PublishError, match="WRONGTYPE") as raised:
        broker.build().publish(create_events(1))
    assert raised.value.accepted == 0
    broker.client.delete(broker.name)

"""Every publisher keeps the contract of outbox.publisher.Publisher, on which the dispatcher relies."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import outbox.publishers
from eventservice.kernel.ids import new_id
from outbox import publisher_spec
from outbox.envelope import Envelope
from outbox.models import OutboxEvent
from outbox.store import read_heads
from outbox.writer import PARTITIONS
from tests.contracts.publishers import BUILDERS, PublisherUnderTest
from tests.outbox.support import Clock, build_dispatcher, drain, store_run

# Publishers are called outside of transactions.
pytestmark = pytest.mark.django_db(transaction=True)

TENANTS = [UUID(int=1), UUID(int=2)]


@pytest.fixture(params=BUILDERS)
def subject(request: pytest.FixtureRequest) -> Iterator[PublisherUnderTest]:
    subject = BUILDERS[request.param](TENANTS)
    yield subject
    subject.close()


@pytest.fixture
def events() -> list[Envelope]:
    """Three events of each of two aggregates of two tenants."""
    for tenant_id in TENANTS:
        for _ in range(2):
            store_run(new_id(), 3, tenant_id=tenant_id, data={"name": "Zoë", "list": [1, None, "\n"]})
    stored, _ = read_heads(range(PARTITIONS), 100)
    return stored


def list_first_sequences(accepted: list[dict[str, Any]]) -> dict[str, list[int]]:
    """Return the event numbers of each aggregate in the order in which they were first accepted."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for event in accepted:
        if (number := int(event["sequence"])) not in found[event["subject"]]:
            found[event["subject"]].append(number)
    return dict(found)


def test_every_publisher_has_a_name(subject: PublisherUnderTest) -> None:
    assert subject.publisher.name


def test_it_accepts_all_events_in_the_order_of_each_aggregate(
    subject: PublisherUnderTest, events: list[Envelope]
) -> None:
    subject.publisher.publish(events)
    accepted = subject.list_accepted()
    assert len(accepted) == len(events)
    assert list_first_sequences(accepted) == {str(event.aggregate_id): [1, 2, 3] for event in events}


def test_it_passes_each_event_on_unchanged(subject: PublisherUnderTest, events: list[Envelope]) -> None:
    subject.publisher.publish(events)
    accepted = {event["id"]: event for event in subject.list_accepted()}
    assert accepted == {str(event.event_id): json.loads(event.to_json()) for event in events}


def test_it_accepts_an_empty_batch(subject: PublisherUnderTest) -> None:
    subject.publisher.publish([])
    assert subject.list_accepted() == []


def test_receivers_recognize_a_repeat_by_its_id(subject: PublisherUnderTest, events: list[Envelope]) -> None:
    subject.publisher.publish(events[:2])
    subject.publisher.publish(events)
    accepted = subject.list_accepted()
    assert {event["id"] for event in accepted} == {str(event.event_id) for event in events}
    assert list_first_sequences(accepted) == {str(event.aggregate_id): [1, 2, 3] for event in events}


def test_an_outage_raises_and_claims_no_event_that_was_not_accepted(
    subject: PublisherUnderTest, events: list[Envelope]
) -> None:
    with subject.outage(), pytest.raises(Exception, match=r".") as raised:
        subject.publisher.publish(events)
    claimed = events[: getattr(raised.value, "accepted", 0)]
    assert {str(event.event_id) for event in claimed} <= {event["id"] for event in subject.list_accepted()}


@pytest.mark.usefixtures("events")
def test_a_dispatcher_publishes_after_an_outage_what_was_not_accepted_during_it(
    subject: PublisherUnderTest,
) -> None:
    clock = Clock()
    dispatcher = build_dispatcher(subject.publisher, clock=clock)
    with subject.outage():
        failed = dispatcher.dispatch_once()
    assert (failed.published, failed.parked) == (0, 0)
    clock.now += failed.next_wait + 60
    assert drain(dispatcher) == 12
    assert set(map(tuple, list_first_sequences(subject.list_accepted()).values())) == {(1, 2, 3)}
    assert not OutboxEvent.across_tenants.filter(published_at=None).exists()


def test_every_package_of_a_publisher_is_tested_here() -> None:
    packages = {path.parent.name for path in Path(outbox.publishers.__path__[0]).glob("*/publisher.py")}
    assert packages == BUILDERS.keys()
    assert (
        {*publisher_spec.BROKERS.values()} == packages - {"log", "webhook"} == publisher_spec.LIBRARIES.keys()
    )

"""A publisher that records, and helpers that the tests of the outbox share."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from django.db import transaction

from eventservice.kernel.ids import new_id
from outbox.dispatcher import Dispatcher
from outbox.envelope import Envelope
from outbox.publisher import PoisonEvent, PublishError
from outbox.writer import Event, append_events

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
# The tenant of all events, unless a test says otherwise.
TENANT = uuid.UUID(int=1)
OTHER_TENANT = uuid.UUID(int=2)


class RecordingPublisher:
    """A publisher that accepts all events except those that it is told to refuse."""

    name = "recording"

    def __init__(self) -> None:
        self.accepted: list[Envelope] = []
        self.is_down = False
        self.fails_after: int | None = None
        self.poison: set[uuid.UUID] = set()

    def publish(self, events: Sequence[Envelope]) -> None:
        for number, event in enumerate(events):
            if self.is_down or number == self.fails_after:
                raise PublishError("the broker is unavailable", accepted=number)
            if event.event_id in self.poison:
                raise PoisonEvent("too large", accepted=number)
            self.accepted.append(event)

    def sequences(self, aggregate_id: uuid.UUID) -> list[int]:
        return [event.sequence for event in self.accepted if event.aggregate_id == aggregate_id]


class Clock:
    """A monotonic clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def build_event(aggregate_id: uuid.UUID, seq: int, **given: Any) -> Event:
    values = {
        "tenant_id": TENANT,
        "type": "ServiceCallSubmitted",
        "data": {"n": seq},
        "occurred_at": NOON,
        "correlation_id": new_id(),
    }
    return Event(aggregate_id=aggregate_id, seq=seq, **{**values, **given})


def build_envelopes(aggregates: str, size: int = 0) -> list[Envelope]:
    """Return an event for each letter, which stands for its aggregate. They are not stored."""
    return [
        Envelope(
            id=number,
            partition=0,
            attempts=0,
            event_id=uuid.UUID(int=number),
            tenant_id=TENANT,
            aggregate_type="ServiceCall",
            aggregate_id=uuid.UUID(int=ord(letter)),
            sequence=aggregates[: number + 1].count(letter),
            type="ServiceCallSubmitted",
            time=NOON,
            correlation_id=uuid.UUID(int=1),
            causation_id=None,
            data=f'"{"x" * size}"',
        )
        for number, letter in enumerate(aggregates)
    ]


def store_events(*events: Event) -> list[Event]:
    """Append the events in a transaction of their own."""
    with transaction.atomic():
        append_events(events)
    return list(events)


def store_run(aggregate_id: uuid.UUID, count: int, first: int = 1, **given: Any) -> list[Event]:
    """Append consecutive events of one aggregate."""
    return store_events(*(build_event(aggregate_id, seq, **given) for seq in range(first, first + count)))


def build_dispatcher(*publishers: Any, **given: Any) -> Dispatcher:
    return Dispatcher(new_id(), publishers, **given)


def drain(dispatcher: Dispatcher, passes: int = 50) -> int:
    """Make passes until there is nothing more to do at once, and release the partitions. Return how many were published."""
    published = 0
    for _ in range(passes):
        done = dispatcher.dispatch_once()
        published += done.published
        if done.next_wait:
            dispatcher.release()
            return published
    raise AssertionError("the dispatcher never finishes")

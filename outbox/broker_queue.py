"""The queues of the brokers: what is stored for each, and the sender that empties it.

The dispatcher stores every event in the queue of every broker and counts it as published. So an outage, or a broker that
is slow, delays neither webhooks nor the other brokers, and outlasts the dispatcher.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from django.db import connection, transaction
from django.db.models import Min

from eventservice.db.leases import Fenced
from eventservice.db.now import db_now
from eventservice.db.sql import placeholders
from eventservice.kernel.backoff import equal_jitter
from eventservice.kernel.faults import trigger_fault
from eventservice.kernel.logging import get_logger
from outbox.envelope import Envelope
from outbox.models import BrokerQueueEntry
from outbox.parking import park_refused
from outbox.publisher import Broker, PoisonEvent, PublishError
from outbox.store import read_broker_queue

log = get_logger(__name__)

MIN_RETRY_SECONDS, MAX_RETRY_SECONDS = 0.2, 30.0
# How often a queue is read that was empty: the events in it may be those of a dispatcher that has died.
IDLE_SECONDS = 1.0
DELETE_BATCH = 500


class BrokerQueue:
    """The publisher that stores events for a broker. Its receiver is the queue: accepted events are durable."""

    def __init__(self, name: str) -> None:
        self.name = name

    def publish(self, events: Sequence[Envelope]) -> None:
        entries = [
            BrokerQueueEntry(publisher=self.name, event_id=event.id, partition=event.partition)
            for event in events
        ]
        # A repeat of an event that is still in the queue changes nothing.
        BrokerQueueEntry.objects.bulk_create(entries, ignore_conflicts=True)


class _Batch(threading.Thread):
    """The events that a broker is being given. The thread uses no database."""

    def __init__(self, broker: Broker, events: list[Envelope], wake: Callable[[], None]) -> None:
        super().__init__(name=f"broker-{broker.name}", daemon=True)
        self.events = events
        # Until the broker has accepted them, and also if the thread cannot be started, nothing counts as accepted.
        self.error: Exception | None = PublishError("the events were not sent")
        self._broker = broker
        self._wake = wake

    def run(self) -> None:
        try:
            self._broker.publish(self.events)
            self.error = None
        except Exception as error:  # noqa: BLE001 - a bug in a publisher must delay its events, not lose them
            self.error = error
        self._wake()

    def count_accepted(self) -> int:
        if self.error is None:
            return len(self.events)
        return self.error.accepted if isinstance(self.error, PublishError) else 0


class BrokerSender:
    """Gives the events of one queue to its broker, one batch at a time, in a thread that nobody waits for.

    Only the owner of a partition sends its events. After a takeover the old owner may still send a batch, which
    the new one sends as well: receivers recognize repeats. `wake` is called when a batch has ended.
    """

    def __init__(
        self,
        broker: Broker,
        wake: Callable[[], None] = lambda: None,
        *,
        batch: int = 500,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._broker = broker
        self._wake = wake
        self._batch_size = self._max_events = batch
        self._clock = clock
        self._batch: _Batch | None = None
        self._failures = 0
        self._due_at = float("-inf")

    @property
    def name(self) -> str:
        return self._broker.name

    @property
    def is_resting(self) -> bool:
        """Whether the queue was empty, or the broker has failed, a moment ago."""
        return not self._is_sending and self._clock() < self._due_at

    @property
    def _is_sending(self) -> bool:
        return self._batch is not None and self._batch.is_alive()

    def compute_wait(self) -> float:
        """Return in how many seconds `send_once` has something to do, unless a batch ends or an event comes before."""
        if self._is_sending:
            return IDLE_SECONDS
        return max(0.0, self._due_at - self._clock())

    def expect_events(self) -> None:
        """Read the queue with the next `send_once`, unless the broker has failed lately."""
        if not self._failures:
            self._due_at = float("-inf")

    def send_once(self, partitions: Collection[int], fence: Callable[[Collection[int]], None]) -> int:
        """Record the batch that has ended, and begin the next. Return how many events the broker has accepted.

        `fence` raises Fenced, inside of a transaction, if one of the partitions has another owner.
        """
        accepted = 0
        if self.compute_wait():
            return 0
        if self._batch is not None:
            accepted = self._record(self._batch, fence)
            self._batch = None
        if self._clock() >= self._due_at:
            self._begin(partitions)
        return accepted

    def postpone(self, error: Exception) -> None:
        """Pause after an error, for longer after each. A batch that has ended is recorded after the pause."""
        self._failures += 1
        self._due_at = self._clock() + equal_jitter(self._failures, MIN_RETRY_SECONDS, MAX_RETRY_SECONDS)
        log.warning(
            "publishing_failed",
            publisher=self.name,
            error=str(error),
            exc_info=None if isinstance(error, PublishError) else error,
        )

    def finish(self, seconds: float) -> None:
        """Let the batch end within that time, and record what was accepted. Begin no other."""
        if self._batch is None:
            return
        self._batch.join(max(0.0, seconds))
        if not self._batch.is_alive():
            batch, self._batch = self._batch, None
            self._remove(batch.events[: batch.count_accepted()])

    def close(self, grace_seconds: float) -> None:
        """Let the batch end within the grace period, record what was accepted, and end the connections."""
        self.finish(grace_seconds)
        if self._batch is None:  # otherwise the connection is in use, and the events are sent again
            self._broker.close()

    def _begin(self, partitions: Collection[int]) -> None:
        try:
            events = read_broker_queue(self.name, partitions, self._max_events)
        except MemoryError:
            log.exception("batch_exceeds_memory", publisher=self.name, max_events=self._max_events)
            connection.close()  # possibly in the middle of an answer
            self._max_events = max(1, self._max_events // 2)
            self._due_at = self._clock() + MIN_RETRY_SECONDS
            return
        self._max_events = min(self._batch_size, self._max_events + max(1, self._max_events // 8))
        if not events:
            self._due_at = self._clock() + IDLE_SECONDS
            return
        trigger_fault("broker.read")
        batch = _Batch(self._broker, events, self._wake)
        try:
            batch.start()
        except RuntimeError as error:  # the limit of threads or of memory
            self.postpone(error)
        else:
            self._batch = batch

    def _record(self, batch: _Batch, fence: Callable[[Collection[int]], None]) -> int:
        trigger_fault("broker.accepted")
        accepted = batch.count_accepted()
        self._remove(batch.events[:accepted])
        if batch.error is None:
            self._failures = 0
        elif isinstance(batch.error, PoisonEvent):
            self._failures = 0
            self._park(batch.events[accepted], str(batch.error), fence)
        else:
            self._note_error(batch.events[accepted:], batch.error)
            self.postpone(batch.error)
        return accepted

    def _remove(self, events: Sequence[Envelope]) -> None:
        for start in range(0, len(events), DELETE_BATCH):
            keys = [event.id for event in events[start : start + DELETE_BATCH]]
            with connection.cursor() as cursor:
                cursor.execute(
                    f"DELETE FROM broker_queue WHERE publisher = %s AND event_id IN ({placeholders(keys)})",
                    [self.name, *keys],
                )

    def _park(self, event: Envelope, error: str, fence: Callable[[Collection[int]], None]) -> None:
        try:
            with transaction.atomic():
                fence([event.partition])
                park_refused(event, self.name, f"{self.name}: {error}")
        except Fenced:
            return  # the new owner finds out by itself
        log.error(
            "event_parked",
            tenant_id=str(event.tenant_id),
            correlation_id=str(event.correlation_id),
            event_id=str(event.event_id),
            event_type=event.type,
            remedy=f"manage.py outbox retry|skip {event.id}",
        )

    def _note_error(self, events: Sequence[Envelope], error: Exception) -> None:
        if events:
            first = BrokerQueueEntry.objects.filter(publisher=self.name, event_id=events[0].id)
            first.update(last_error=str(error))


@dataclass(frozen=True, slots=True)
class BrokerBacklog:
    """The events that wait for a broker: how many, for how long, and why."""

    publisher: str
    count: int
    lag: timedelta
    last_error: str | None


def list_backlogs(max_counted: int) -> list[BrokerBacklog]:
    """Return the queues that are not empty, by name. A count above `max_counted` is one more than that."""
    return [_measure_backlog(name, max_counted) for name in _list_publishers()]


def has_queue(publisher: str) -> bool:
    """Return whether an event waits for a broker of this name."""
    return BrokerQueueEntry.objects.filter(publisher=publisher).exists()


def discard_queue(publisher: str) -> int:
    """Delete what waits for a broker that is no longer used. Return how many events that were."""
    deleted = 0
    entries = BrokerQueueEntry.objects.filter(publisher=publisher).order_by("event_id")
    while keys := list(entries.values_list("event_id", flat=True)[:DELETE_BATCH]):
        deleted += BrokerQueueEntry.objects.filter(publisher=publisher, event_id__in=keys).delete()[0]
    return deleted


def _list_publishers() -> Iterable[str]:
    """Yield the names in the table, with one probe of its key for each: a queue may be long."""
    name: str | None = ""
    while name is not None:
        name = BrokerQueueEntry.objects.filter(publisher__gt=name).aggregate(name=Min("publisher"))["name"]
        if name is not None:
            yield name


def _measure_backlog(name: str, max_counted: int) -> BrokerBacklog:
    # In the order of the key, which a planner may otherwise not use.
    entries = BrokerQueueEntry.objects.filter(publisher=name).order_by("event_id")
    first = entries.select_related("event").first()
    lag = db_now() - first.event.created_at if first else timedelta(0)
    error = first.last_error if first else None
    return BrokerBacklog(name, entries[: max_counted + 1].count(), max(timedelta(0), lag), error)

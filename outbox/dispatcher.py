"""Publishes the events of the outbox: at least once, and in order within each aggregate.

Each partition has one owner, by a lease. A pass reads the first unpublished events of its partitions, hands them to the
publishers outside of any transaction, and marks them in a transaction that is fenced by the leases: a dispatcher that
has lost a partition marks none of its events, and the new owner publishes them again under the same ids.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID

from django.db import connection, transaction

from eventservice.db.leases import Fenced, Leases, pick_share
from eventservice.db.totals import add_to_totals
from eventservice.kernel.backoff import equal_jitter
from eventservice.kernel.faults import trigger_fault
from eventservice.kernel.logging import get_logger
from outbox.envelope import Aggregate, Envelope
from outbox.models import OutboxPartition
from outbox.parking import hold_followers
from outbox.publisher import PoisonEvent, Publisher, PublishError
from outbox.store import (
    create_partitions,
    list_nonempty_partitions,
    mark_published,
    read_heads,
    record_refusal,
)
from outbox.writer import PARTITIONS

log = get_logger(__name__)

TOTALS_PREFIX = "events/"
MIN_RETRY_SECONDS, MAX_RETRY_SECONDS = 0.2, 30.0
# How soon to claim a partition again whose owner has not released it yet.
CLAIM_RETRY_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class DispatchResult:
    """The result of one pass. The next is due in `next_wait` seconds, or when an event is appended."""

    published: int
    parked: int
    next_wait: float


@dataclass(slots=True)
class _Pause:
    """A partition is paused after a failure. `failures` counts those in a row."""

    failures: int
    until: float


@dataclass(slots=True)
class _PassOutcome:
    """The events of a pass by what the publishers did with them."""

    accepted: list[Envelope] = field(default_factory=list)
    refused: list[tuple[Envelope, str]] = field(default_factory=list)
    # Aggregates that are parked, each with its partition.
    parked: dict[Aggregate, int] = field(default_factory=dict)
    failed_partitions: set[int] = field(default_factory=set)

    def list_partitions(self) -> set[int]:
        """Return the partitions to which something is to be written."""
        refused = {event.partition for event, _ in self.refused}
        return {event.partition for event in self.accepted} | refused | set(self.parked.values())

    def restrict_to(self, partitions: Collection[int]) -> _PassOutcome:
        return _PassOutcome(
            [event for event in self.accepted if event.partition in partitions],
            [(event, error) for event, error in self.refused if event.partition in partitions],
            {aggregate: number for aggregate, number in self.parked.items() if number in partitions},
            self.failed_partitions,
        )


class Dispatcher:
    """The share of the outbox that one process publishes.

    `live_owners` returns the ids of the live dispatchers, with or without this one. Without publishers, events count
    as published at once: nobody waits for them.
    """

    def __init__(
        self,
        owner_id: UUID,
        publishers: Sequence[Publisher],
        *,
        live_owners: Callable[[], Collection[UUID]] = tuple,
        lease_length: timedelta = timedelta(seconds=10),
        batch: int = 500,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._owner_id = owner_id
        self._publishers = publishers
        self._live_owners = live_owners
        self._leases = Leases(OutboxPartition, owner_id, lease_length)
        self._renew_interval = lease_length.total_seconds() / 3
        self._batch = batch
        self._max_events = batch  # less while memory does not suffice for more
        self._clock = clock
        self._pauses: dict[int, _Pause] = {}
        self._heartbeat_at = float("-inf")

    @property
    def partitions(self) -> frozenset[int]:
        return frozenset(self._leases.held)

    def dispatch_once(self) -> DispatchResult:
        self.keep_partitions()
        active = self._list_active_partitions()
        nonempty = list_nonempty_partitions(active)[: self._max_events]
        try:
            result = self._dispatch(active, nonempty)
        except MemoryError:
            log.exception("batch_exceeds_memory", max_events=self._max_events)
        else:
            self._max_events = min(self._batch, self._max_events + max(1, self._max_events // 8))
            return result
        connection.close()  # possibly in the middle of an answer
        if self._max_events == 1:
            # One event is too large: the other partitions go on.
            self._update_pauses(nonempty, set(nonempty))
        self._max_events = max(1, self._max_events // 2)
        return DispatchResult(0, 0, MIN_RETRY_SECONDS)

    def _dispatch(self, active: Collection[int], nonempty: list[int]) -> DispatchResult:
        limit = max(1, self._max_events // max(1, len(nonempty)))
        events, parked = read_heads(nonempty, limit)
        trigger_fault("dispatch.read")
        outcome = self._publish(events, parked)
        trigger_fault("dispatch.published")
        published, newly_parked = self._record(outcome)
        self._update_pauses(active, outcome.failed_partitions)
        has_more = max(Counter(event.partition for event in events).values(), default=0) == limit
        return DispatchResult(published, newly_parked, self._compute_wait(has_more or outcome.refused != []))

    def keep_partitions(self) -> float:
        """Send the heartbeat if it is due. Return in how many seconds the next one is."""
        if self._clock() >= self._heartbeat_at:
            self.heartbeat()
        return max(0.0, self._heartbeat_at - self._clock())

    def heartbeat(self) -> None:
        """Renew the leases, and claim or release partitions as dispatchers come and go."""
        self._leases.renew()
        mine = pick_share(range(PARTITIONS), self._owner_id, {self._owner_id, *self._live_owners()})
        self._leases.release(self.partitions - mine)
        if missing := mine - self.partitions:
            create_partitions()
            for partition in missing:
                self._leases.claim(partition)
        self._pauses = {key: pause for key, pause in self._pauses.items() if key in self.partitions}
        interval = self._renew_interval
        if self.partitions != mine:
            interval = min(CLAIM_RETRY_SECONDS, interval)
        self._heartbeat_at = self._clock() + interval

    def release(self) -> None:
        """Release all partitions at once, so that other dispatchers need not wait for the leases to expire."""
        self._leases.release(self.partitions)
        self._heartbeat_at = float("-inf")

    def fence(self, partitions: Collection[int]) -> None:
        """Lock the leases of these partitions until the transaction ends, or raise Fenced if one of them is lost."""
        self._leases.fence(partitions)

    def _list_active_partitions(self) -> list[int]:
        """Return the partitions that are not paused, those with the most failures last.

        A transient failure pauses every partition whose events came after it in the pass. In this order, a partition
        that always fails does not pause the others again and again.
        """
        now = self._clock()
        pauses = {key: self._pauses.get(key, _Pause(0, now)) for key in self.partitions}
        active = [key for key, pause in pauses.items() if pause.until <= now]
        random.shuffle(active)
        return sorted(active, key=lambda key: pauses[key].failures)

    def _publish(self, events: list[Envelope], parked: set[Aggregate]) -> _PassOutcome:
        outcome = _PassOutcome()
        if parked:
            outcome.parked = {
                event.aggregate: event.partition for event in events if event.aggregate in parked
            }
            events = [event for event in events if event.aggregate not in parked]
        for publisher in self._publishers:
            events = _publish_to(publisher, events, outcome)
        outcome.accepted = events
        return outcome

    def _record(self, outcome: _PassOutcome) -> tuple[int, int]:
        """Write the outcome in one fenced transaction. Return how many events were published and parked."""
        while partitions := outcome.list_partitions():
            try:
                with transaction.atomic():
                    self._leases.fence(partitions)
                    return _write(outcome)
            except Fenced:
                # The new owner publishes the events of these partitions again.
                log.warning("partitions_lost", partitions=sorted(self._leases.renew()))
                outcome = outcome.restrict_to(self.partitions)
        return 0, 0

    def _update_pauses(self, attempted: Collection[int], failed: set[int]) -> None:
        for partition in attempted:
            previous = self._pauses.pop(partition, None)
            if partition in failed & self.partitions:
                failures = previous.failures + 1 if previous else 1
                until = self._clock() + equal_jitter(failures, MIN_RETRY_SECONDS, MAX_RETRY_SECONDS)
                self._pauses[partition] = _Pause(failures, until)

    def _compute_wait(self, has_more: bool) -> float:
        if has_more:
            return 0.0
        next_at = min([self._heartbeat_at, *(pause.until for pause in self._pauses.values())])
        return max(0.0, next_at - self._clock())


def _publish_to(publisher: Publisher, events: list[Envelope], outcome: _PassOutcome) -> list[Envelope]:
    """Return the events that the publisher has accepted: of each aggregate, those before the first that it has not."""
    accepted: list[Envelope] = []
    while events:
        try:
            publisher.publish(events)
        except PoisonEvent as error:
            accepted += events[: error.accepted]
            poison, *later = events[error.accepted :]
            outcome.refused.append((poison, f"{publisher.name}: {error}"))
            events = [event for event in later if event.aggregate != poison.aggregate]
        except MemoryError:
            raise  # fewer events at once may fit
        except Exception as error:  # noqa: BLE001 - a bug in a publisher must delay its events, not lose them
            return accepted + _handle_failure(publisher, events, error, outcome)
        else:
            return accepted + events
    return accepted


def _handle_failure(
    publisher: Publisher, events: list[Envelope], error: Exception, outcome: _PassOutcome
) -> list[Envelope]:
    """Note the partitions of the events that were not accepted. Return those that were."""
    is_expected = isinstance(error, PublishError)
    accepted = error.accepted if isinstance(error, PublishError) else 0
    log.warning(
        "publishing_failed",
        publisher=publisher.name,
        error=str(error),
        events=len(events) - accepted,
        exc_info=None if is_expected else error,
    )
    outcome.failed_partitions |= {event.partition for event in events[accepted:]}
    return events[:accepted]


def _write(outcome: _PassOutcome) -> tuple[int, int]:
    published = mark_published(outcome.accepted)
    if published == len(outcome.accepted):  # otherwise another dispatcher has counted some of them
        kinds = Counter(event.type for event in outcome.accepted)
        add_to_totals({f"{TOTALS_PREFIX}{kind}": count for kind, count in kinds.items()})
    newly_parked = [event for event, error in outcome.refused if record_refusal(event, error)]
    for event in newly_parked:
        log.error(
            "event_parked",
            tenant_id=str(event.tenant_id),
            correlation_id=str(event.correlation_id),
            event_id=str(event.event_id),
            event_type=event.type,
            remedy=f"manage.py outbox retry|skip {event.id}",
        )
    hold_followers({*outcome.parked, *(event.aggregate for event in newly_parked)})
    trigger_fault("dispatch.marked")
    return published, len(newly_parked)

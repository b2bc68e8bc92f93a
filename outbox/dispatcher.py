"""Publishes what the outbox holds: at least once, and in order within an aggregate.

Each partition has one owner, by a lease. A pass reads the first unpublished events of its partitions, hands them
to the publishers outside any transaction, and marks them in one that is fenced by the leases: who has lost a
partition marks nothing of it, and the new owner publishes those events again under the same ids.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID

from django.db import transaction

from eventservice.db.leases import Fenced, Leases, pick_share
from eventservice.kernel.backoff import equal_jitter
from eventservice.kernel.faults import trigger_fault
from eventservice.kernel.logging import get_logger
from outbox.envelope import Envelope
from outbox.models import OutboxPartition
from outbox.publisher import PoisonEvent, Publisher, PublishError
from outbox.store import (
    Aggregate,
    list_nonempty_partitions,
    mark_published,
    park_followers,
    read_heads,
    record_refusal,
)
from outbox.writer import PARTITIONS

log = get_logger(__name__)

MIN_RETRY_SECONDS, MAX_RETRY_SECONDS = 0.2, 30.0
# How soon to ask again for a partition whose owner has not let go of it yet.
CLAIM_RETRY_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class DispatchResult:
    """What one pass did, and how many seconds it may rest if nothing is appended meanwhile."""

    published: int
    parked: int
    next_wait: float


@dataclass(slots=True)
class _Pause:
    failures: int
    until: float


@dataclass(slots=True)
class _PassOutcome:
    accepted: list[Envelope] = field(default_factory=list)
    refused: list[tuple[Envelope, str]] = field(default_factory=list)
    # Aggregates that are parked, each with its partition.
    held: dict[Aggregate, int] = field(default_factory=dict)
    stopped: set[int] = field(default_factory=set)

    def partitions(self) -> set[int]:
        refused = {event.partition for event, _ in self.refused}
        return {event.partition for event in self.accepted} | refused | set(self.held.values())

    def within(self, partitions: Collection[int]) -> _PassOutcome:
        return _PassOutcome(
            [event for event in self.accepted if event.partition in partitions],
            [(event, error) for event, error in self.refused if event.partition in partitions],
            {aggregate: partition for aggregate, partition in self.held.items() if partition in partitions},
            self.stopped,
        )


class Dispatcher:
    """One process's share of the outbox.

    `live_owners` names the dispatchers that are alive, with or without this one. With no publisher, events count
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
        self._renew_every = lease_length.total_seconds() / 3
        self._batch = batch
        self._clock = clock
        self._stops: dict[int, _Pause] = {}
        self._heartbeat_due = float("-inf")

    @property
    def partitions(self) -> frozenset[int]:
        return frozenset(self._leases.held)

    def dispatch_once(self) -> DispatchResult:
        if self._clock() >= self._heartbeat_due:
            self.heartbeat()
        open_partitions = self._open_partitions()
        readable = list_nonempty_partitions(open_partitions)
        each = max(1, self._batch // max(1, len(readable)))
        events, parked = read_heads(readable, each)
        trigger_fault("dispatch.read")
        verdict = self._offer_all(events, parked)
        trigger_fault("dispatch.published")
        published, newly_parked = self._record(verdict)
        self._stop_and_resume(open_partitions, verdict.stopped)
        full = max(Counter(event.partition for event in events).values(), default=0) == each
        return DispatchResult(published, newly_parked, self._next_wait(full or verdict.refused != []))

    def heartbeat(self) -> None:
        """Keeps the leases alive, and takes or gives back partitions as dispatchers come and go."""
        self._leases.renew()
        mine = pick_share(range(PARTITIONS), self._owner_id, {self._owner_id, *self._live_owners()})
        self._leases.release(self.partitions - mine)
        if missing := mine - self.partitions:
            create_partitions()
            for partition in missing:
                self._leases.claim(partition)
        self._stops = {key: stop for key, stop in self._stops.items() if key in self.partitions}
        wait = self._renew_every if self.partitions == mine else min(CLAIM_RETRY_SECONDS, self._renew_every)
        self._heartbeat_due = self._clock() + wait

    def release(self) -> None:
        """On a clean stop: the others need not wait for the leases to run out."""
        self._leases.release(self.partitions)
        self._heartbeat_due = float("-inf")

    def _open_partitions(self) -> list[int]:
        """Those that are not stopped, the ones that have failed most often last.

        A transient fault stops every partition whose events came after it in the pass; in this order one that
        fails always does not stop the others again and again.
        """
        now = self._clock()
        stops = {key: self._stops.get(key, _Pause(0, now)) for key in self.partitions}
        tried = [key for key in stops if stops[key].until <= now]
        random.shuffle(tried)
        return sorted(tried, key=lambda key: stops[key].failures)

    def _offer_all(self, events: list[Envelope], parked: set[Aggregate]) -> _PassOutcome:
        verdict = _PassOutcome()
        if parked:
            verdict.held = {event.aggregate: event.partition for event in events if event.aggregate in parked}
            events = [event for event in events if event.aggregate not in parked]
        for publisher in self._publishers:
            events = _offer(publisher, events, verdict)
        verdict.accepted = events
        return verdict

    def _record(self, verdict: _PassOutcome) -> tuple[int, int]:
        while partitions := verdict.partitions():
            try:
                with transaction.atomic():
                    self._leases.fence(partitions)
                    return _write(verdict)
            except Fenced:
                # Their new owner publishes these events again.
                log.warning("partitions_lost", partitions=sorted(self._leases.renew()))
                verdict = verdict.within(self.partitions)
        return 0, 0

    def _stop_and_resume(self, tried: Collection[int], stopped: set[int]) -> None:
        for partition in tried:
            before = self._stops.pop(partition, None)
            if partition in stopped & self.partitions:
                failures = before.failures + 1 if before else 1
                until = self._clock() + equal_jitter(failures, MIN_RETRY_SECONDS, MAX_RETRY_SECONDS)
                self._stops[partition] = _Pause(failures, until)

    def _next_wait(self, more: bool) -> float:
        if more:
            return 0.0
        return max(
            0.0, min([self._heartbeat_due, *(stop.until for stop in self._stops.values())]) - self._clock()
        )


def create_partitions() -> None:
    if OutboxPartition.objects.count() < PARTITIONS:
        OutboxPartition.objects.bulk_create(
            [OutboxPartition(partition=number) for number in range(PARTITIONS)], ignore_conflicts=True
        )


def _offer(publisher: Publisher, events: list[Envelope], verdict: _PassOutcome) -> list[Envelope]:
    """Which of the events this publisher has accepted: of each aggregate, those before the first that it has not."""
    accepted: list[Envelope] = []
    while events:
        try:
            publisher.publish(events)
        except PoisonEvent as error:
            accepted += events[: error.accepted]
            poison, *later = events[error.accepted :]
            verdict.refused.append((poison, f"{publisher.name}: {error}"))
            events = [event for event in later if event.aggregate != poison.aggregate]
        except Exception as error:  # noqa: BLE001 - a publisher's bug must stop its events, and not lose them
            return accepted + _stop(publisher, events, error, verdict)
        else:
            return accepted + events
    return accepted


def _stop(
    publisher: Publisher, events: list[Envelope], error: Exception, verdict: _PassOutcome
) -> list[Envelope]:
    known = isinstance(error, PublishError)
    accepted = error.accepted if isinstance(error, PublishError) else 0
    log.warning(
        "events_not_taken",
        publisher=publisher.name,
        error=str(error),
        events=len(events) - accepted,
        exc_info=None if known else error,
    )
    verdict.stopped |= {event.partition for event in events[accepted:]}
    return events[:accepted]


def _write(verdict: _PassOutcome) -> tuple[int, int]:
    published = mark_published(verdict.accepted)
    parked = [event for event, error in verdict.refused if record_refusal(event, error)]
    for event in parked:
        log.error(
            "event_parked",
            tenant_id=str(event.tenant_id),
            correlation_id=str(event.correlation_id),
            event_id=str(event.event_id),
            event_type=event.type,
            remedy=f"manage.py outbox retry|skip {event.id}",
        )
    for tenant_id, aggregate_id in {*verdict.held, *(event.aggregate for event in parked)}:
        park_followers(tenant_id, aggregate_id)
    trigger_fault("dispatch.marked")
    return published, len(parked)

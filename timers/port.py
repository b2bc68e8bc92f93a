"""The port to the timers' tables: what all other code may do with timers, and the values that cross the port.

Only the implementation (timers.persistence) reads and writes `timer_schedules`. tests/test_architecture.py asserts it.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple, Protocol

from timers.models import TimerShard, TimerState

# Requests of this size and more can be held back while smaller ones go on.
LARGE_REQUEST_BYTES = 10_000


class Timer(NamedTuple):
    """The timer of one service call, as it is scheduled and as the poller finds it.

    A named tuple, because creating a frozen dataclass takes three times as long.
    """

    tenant_id: uuid.UUID
    service_call_id: uuid.UUID
    correlation_id: uuid.UUID
    due_at: datetime
    shard_id: int
    host: str
    request_bytes: int = 0


class TimerEntry(NamedTuple):
    """A stored timer with its history, for people."""

    tenant_id: uuid.UUID
    service_call_id: uuid.UUID
    correlation_id: uuid.UUID
    due_at: datetime
    registered_at: datetime
    reached_at: datetime | None
    state: TimerState
    request_bytes: int


class NewDueTime(NamedTuple):
    """The due time that a call's timer gets."""

    tenant_id: uuid.UUID
    service_call_id: uuid.UUID
    due_at: datetime


@dataclass(frozen=True, slots=True)
class HeldBack:
    """Tenants and hosts that have reached an in-flight limit: their timers wait, all others go on."""

    tenants: Collection[uuid.UUID] = ()
    hosts: Collection[str] = ()
    hosts_by_tenant: Mapping[uuid.UUID, Collection[str]] = field(default_factory=dict)
    # Applies to large requests only (LARGE_REQUEST_BYTES).
    large: HeldBack | None = None

    def __bool__(self) -> bool:
        return bool(self.tenants or self.hosts or self.hosts_by_tenant or self.large)

    def for_tenant(self, tenant_id: uuid.UUID) -> HeldBack:
        """Return the part that concerns one tenant."""
        return HeldBack(
            [tenant_id] if tenant_id in self.tenants else (),
            self.hosts,
            {tenant_id: self.hosts_by_tenant[tenant_id]} if tenant_id in self.hosts_by_tenant else {},
            self.large and self.large.for_tenant(tenant_id),
        )


NOTHING_HELD_BACK = HeldBack()


class PollScope(NamedTuple):
    """The timers that an engine looks for. With `since`, it skips everything that was due by then."""

    shards: Collection[int]
    held_back: HeldBack = NOTHING_HELD_BACK
    since: datetime | None = None


class ShardFilter(StrEnum):
    ALL = "all"
    UNOWNED = "unowned"
    OVERDUE = "overdue"


@dataclass(frozen=True, slots=True)
class Backlog:
    """How many scheduled timers are overdue, and when the first scheduled timer is due."""

    overdue: int
    first_due: datetime | None


@dataclass(frozen=True, slots=True)
class ShardState:
    """A shard with its backlog. `overdue` counts up to one more than MAX_COUNTED_OVERDUE (timers.backlog)."""

    shard: TimerShard
    first_due: datetime | None
    overdue: int


class StuckShard(NamedTuple):
    shard_id: int
    first_due: datetime


class TimerPersistencePort(Protocol):
    """Timers in a database: each service call has at most one.

    Operations begin with the tenant, or take timers that name theirs. Those below the first comment are across tenants by
    their nature: an engine polls the shards that it owns, and its lease on them is checked before it writes (timers.poller).
    Operators see all tenants. Every operation takes part in the caller's transaction.
    """

    def insert_timers(self, timers: Iterable[Timer], now: datetime) -> None:
        """Insert the timers of new calls. None of the calls may have a timer yet."""

    def schedule_timer(self, timer: Timer, now: datetime) -> None:
        """Insert a timer, or overwrite the one that its call has. That is scheduled again if it was reached."""

    def rearm_timers(self, due: Iterable[NewDueTime], now: datetime) -> None:
        """Set new due times. Timers that were reached are scheduled again. Calls without a timer get none."""

    def unschedule_timer(self, tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> None:
        """Delete a timer, unless it has been reached."""

    def lock_scheduled_timer(self, tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> None:
        """Lock a timer until the transaction ends, unless it has been reached."""

    def find_timer(self, tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> TimerEntry | None: ...

    def find_by_correlation(
        self, tenant_id: uuid.UUID, correlation_id: uuid.UUID, limit: int
    ) -> list[TimerEntry]:
        """Return the first timers of a correlation id by due time, of one tenant."""

    def find_due(
        self, tenant_id: uuid.UUID, now: datetime, limit: int, scope: PollScope | None = None
    ) -> list[Timer]:
        """Lock and return the due timers of one tenant, those that have been due longest first.

        Timers that another transaction has locked are skipped. Whoever fires the timers marks them in this transaction.
        """

    def find_due_timer(self, tenant_id: uuid.UUID, service_call_id: uuid.UUID, now: datetime) -> Timer | None:
        """Lock and return one timer as `find_due` does, if it is still due."""

    def mark_fired(self, timers: Sequence[Timer], reached_at: datetime, versions: Mapping[int, int]) -> None:
        """Mark timers as reached. `versions` maps each shard to the lease version under which they are reached.

        Raise LostRace, and let nothing be committed, unless each of them was scheduled.
        """

    def count_due(self, tenant_id: uuid.UUID, by: datetime, max_count: int) -> int:
        """Count a tenant's scheduled timers that are due by then. Counting stops at `max_count`."""

    # --- an engine's poll, of the shards that it owns ---

    def find_due_in_shards(self, now: datetime, limit: int, scope: PollScope) -> list[Timer]:
        """Lock and return due timers of all tenants, shard by shard. Locked timers are skipped."""

    def find_tenants_with_due(self, tenant_ids: Iterable[uuid.UUID], by: datetime) -> list[uuid.UUID]:
        """Return those of the tenants that have timers due by then, in the order of their ids.

        A poller asks several times a second: one that passes the same tuple again saves rendering it.
        """

    def find_seconds_until_due(self, shards: Collection[int]) -> float | None:
        """Return the seconds until the first timer of these shards is due (negative if overdue), or None."""

    # --- operators ---

    def measure_backlog(self, now: datetime, max_count: int) -> Backlog:
        """Return the backlog of all shards. Counting stops at one more than `max_count`."""

    def list_shard_states(
        self, listed: ShardFilter, now: datetime, after: int, limit: int
    ) -> list[ShardState]:
        """Return shards in the order of their ids, beginning after the id `after`."""

    def count_scheduled(self, shards: Collection[int]) -> dict[int, int]:
        """Count the scheduled timers of these shards. Shards without any are missing."""

    def list_stuck_shards(self, overdue_since: datetime, now: datetime) -> list[StuckShard]:
        """Return the shards without a lasting lease that have had an overdue timer since the given time."""

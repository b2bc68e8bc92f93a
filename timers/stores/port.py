"""The port to a timer store: a database outside of the deployment's own, with the specification's table of timers.

The stores are in the packages beside this module. tests/contracts/test_timer_store.py asserts this contract for each of
them. A store knows nothing of service calls, and no transaction crosses the port.

Correctness rests on the rows. Every write of a timer names the state of the row that it replaces, as it was read, and
changes nothing if the row is in another state. So it does not matter for safety who owns a shard, whose clock is right, or
how long a process was frozen between reading and writing.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from typing import Any, NamedTuple, NewType, Protocol

from eventservice.kernel.findings import Finding
from eventservice.kernel.sharding import compute_shard

# What the columns of a timer mean. A cell takes no row of a format that it does not know.
FORMAT = 1
# Before every other time: a timer that nobody has taken, and the time in the key of rows that are not timers.
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

MAX_TIMER_ID_LENGTH = 255
# With the tenant's id and a slash, it fills the specified column of 255 characters.
MAX_STORED_NAMESPACE_LENGTH = 255 - 37

# Changes whenever a timer is set or changed. It becomes the id of the service call.
Revision = NewType("Revision", uuid.UUID)
# Where the next page of a list begins. Only the store that made it can read it.
Position = NewType("Position", str)


class RowType(IntEnum):
    """The kinds of rows in the table. The first two are the specification's."""

    SHARD = 1
    TIMER = 2
    # In stores that cannot find a timer by an index: where the row of a timer is.
    POINTER = 3
    MEMBER = 4
    NAMESPACE = 5


# The partition of members and namespaces, which belong to no shard.
RESERVED_SHARD = -1
# The columns of the key that a row does not need. No namespace of a tenant is equal to this one, and an empty string would
# be null on Oracle.
NIL_UUID = uuid.UUID(int=0)
NO_NAMESPACE = NO_TIMER_ID = "-"
# Whoever only looks, and takes no timers.
NO_CELL = "-"


# --- errors -------------------------------------------------------------------------------------------------------


class TimerStoreError(Exception):
    """A store did not do what it was asked to do. The message names no secret."""


class StoreUnavailable(TimerStoreError):
    """The store cannot be reached, or refuses to work now. A write of one timer has changed nothing.

    Of a write of several timers, any number may have been written.
    """


class OutcomeUnknown(TimerStoreError):
    """The connection was lost, or the answer came too late. The write may have happened, or may still happen."""


class TimerRefused(TimerStoreError):
    """The store can never hold this timer. The message names the member and the rule."""


class TimerTooLarge(TimerRefused):
    """The timer has more bytes than the store accepts."""


class TimerConflict(TimerStoreError):
    """The row is not in the state that the write names. `stored` is the timer that is there now, if there is one."""

    def __init__(self, stored: StoredTimer | None) -> None:
        super().__init__("the timer was changed or removed, or is taken" if stored else "the timer is gone")
        self.stored = stored


# --- values -------------------------------------------------------------------------------------------------------


def round_up(moment: datetime) -> datetime:
    """Round up to milliseconds, which is what stores keep. Nothing becomes due early by that."""
    return moment.astimezone(UTC) + timedelta(microseconds=-moment.microsecond % 1000)


def _is_stored_exactly(moment: datetime) -> bool:
    return moment.utcoffset() == timedelta(0) and moment.microsecond % 1000 == 0


@dataclass(frozen=True, slots=True)
class QualifiedNamespace:
    """A namespace of a tenant."""

    tenant_id: uuid.UUID
    name: str

    def __post_init__(self) -> None:
        if not 1 <= len(self.name) <= MAX_STORED_NAMESPACE_LENGTH:
            raise TimerRefused(
                f"namespace: a namespace in a timer store has 1 to {MAX_STORED_NAMESPACE_LENGTH} characters,"
                f" not {len(self.name)}"
            )

    @classmethod
    def parse(cls, text: str) -> QualifiedNamespace:
        tenant_id, _, name = text.partition("/")
        return cls(uuid.UUID(tenant_id), name)

    def __str__(self) -> str:
        """Return the column `timer_namespace`. Equal namespaces of two tenants differ in it."""
        return f"{self.tenant_id}/{self.name}"


@dataclass(frozen=True, slots=True)
class TimerKey:
    """A timer as its client addresses it, and the shard in which it is."""

    namespace: QualifiedNamespace
    timer_id: str
    shard: int

    @classmethod
    def build(cls, namespace: QualifiedNamespace, timer_id: str, num_shards: int) -> TimerKey:
        """Return the key of a timer in a namespace with this number of shards. Raise TimerRefused for an invalid id.

        The hash is salted with the tenant, as that of all timers (decision 21).
        """
        if not 1 <= len(timer_id) <= MAX_TIMER_ID_LENGTH:
            raise TimerRefused(
                f"id: a timer id has 1 to {MAX_TIMER_ID_LENGTH} characters, not {len(timer_id)}"
            )
        return cls(namespace, timer_id, compute_shard(namespace.tenant_id, timer_id, num_shards))

    @property
    def uuid(self) -> uuid.UUID:
        return compute_timer_uuid(self.namespace, self.timer_id)


def compute_timer_uuid(namespace: QualifiedNamespace, timer_id: str) -> uuid.UUID:
    """Return the specified UUID of a timer: the MD5 of its namespace and id, the same in every release."""
    return _hash_to_uuid(f"{namespace}:{timer_id}")


def compute_namespace_uuid(namespace: QualifiedNamespace) -> uuid.UUID:
    """Return the UUID in the key of the row that declares a namespace."""
    return _hash_to_uuid(str(namespace))


def _hash_to_uuid(text: str) -> uuid.UUID:
    return uuid.UUID(bytes=hashlib.md5(text.encode(), usedforsecurity=False).digest())


@dataclass(frozen=True, slots=True)
class Progress:
    """The traces that a timer's attempts have left for the next one."""

    # Failed attempts, for the retry policy.
    attempts: int = 0
    interruptions: int = 0
    first_started_at: datetime | None = None
    # The sequence number of the next event about the timer.
    next_seq: int = 1


class Take(NamedTuple):
    """The right of a cell to make the attempt with this number: what ending the attempt names."""

    key: TimerKey
    revision: Revision
    execute_at: datetime
    number: int


class NextAttempt(NamedTuple):
    """The end of a take, and when the timer is due again. A progress of None is kept as it is."""

    take: Take
    execute_at: datetime
    progress: Progress | None = None


@dataclass(frozen=True, slots=True)
class StoredTimer:
    """A row of a timer. It is complete: a cell needs nothing else to make the attempt."""

    key: TimerKey
    revision: Revision
    # When the next attempt is due. Retries change it.
    execute_at: datetime
    # The time that the client asked for.
    requested_at: datetime
    created_at: datetime
    callback_url: str
    payload: Any = None
    # As plain data: what it means is not the store's concern.
    retry_policy: Mapping[str, Any] | None = None
    callback_timeout_seconds: float = 30.0
    progress: Progress = field(default_factory=Progress)
    # How often it was taken. The attempts have these numbers.
    takes: int = 0
    taken_until: datetime = EPOCH
    # The cell that has taken it. None after the attempt has ended.
    taken_by: str | None = None
    format: int = FORMAT

    def __post_init__(self) -> None:
        times = (self.execute_at, self.requested_at, self.created_at, self.taken_until)
        if not all(map(_is_stored_exactly, [*times, self.progress.first_started_at or EPOCH])):
            raise ValueError("the times of a stored timer are in UTC and rounded up to milliseconds")

    @property
    def take(self) -> Take:
        """The latest take of this timer."""
        return Take(self.key, self.revision, self.execute_at, self.takes)

    def is_taken(self, now: datetime) -> bool:
        """Return whether an attempt may be under way. While it is, the timer can be neither changed nor taken."""
        return self.taken_by is not None and self.taken_until > now

    def build_moved(self, execute_at: datetime) -> StoredTimer:
        """Return this timer as `TimerStore.move` leaves it: due at another time, after a take that had no attempt."""
        return replace(
            self,
            execute_at=round_up(execute_at),
            takes=self.takes + 1,
            taken_until=EPOCH,
            taken_by=None,
        )


class TimerPage(NamedTuple):
    """Some timers of a list. It can have fewer than the limit, or none, although `after` says that there are more."""

    timers: list[StoredTimer]
    # None at the end of the list.
    after: Position | None

    def leave_out_taken(self, now: datetime) -> TimerPage:
        return self._replace(timers=[timer for timer in self.timers if not timer.is_taken(now)])


class Member(NamedTuple):
    """A living engine process of any cell. It counts its heartbeats, the first of which is 1."""

    id: uuid.UUID
    beats: int
    metadata: Mapping[str, str]


class ShardOwnership(NamedTuple):
    """The ownership record of a shard. A shard that nobody has ever claimed has the version 0."""

    shard: int
    version: int
    owner: str | None = None
    claimed_at: datetime | None = None
    metadata: Mapping[str, str] = {}


class Claim(NamedTuple):
    """A shard, and the version of its ownership record that the claim has written."""

    shard: int
    version: int


class NamespaceDeclaration(NamedTuple):
    """A namespace as all cells that share the store know it.

    The fingerprint has a digest for each group of settings that decide how its timers are sent.
    """

    namespace: QualifiedNamespace
    num_shards: int
    fingerprint: Mapping[str, str]
    version: int


class ShardBacklog(NamedTuple):
    """The number of timers in a shard, and of those that are due and not taken."""

    shard: int
    pending: int
    overdue: int


# --- the port -----------------------------------------------------------------------------------------------------


class TimerStore(Protocol):
    """A timer store as one cell sees it.

    A store connects when it is first used, because processes fork before. Every method can raise StoreUnavailable, and every
    write OutcomeUnknown. `now` is the time of the cell's relational database, as everywhere.
    """

    def migrate(self) -> None:
        """Create the table and its indexes, or what is missing of them. Timers that exist stay as they are."""

    def check(self) -> list[Finding]:
        """Compare the server and the objects in it with what this store expects."""

    def read_clock(self) -> datetime:
        """Return the time of the server, which may be exact to the second only."""

    def close(self) -> None:
        """End the connections, without an exception. The next use begins others."""

    # --- the processes and namespaces that share the store ---

    def members(self) -> list[Member]: ...

    def beat(self, member: Member) -> bool:
        """Store the member's number of heartbeats. The first one creates the member.

        Return False if the member no longer exists: another process has declared it dead.
        """

    def remove_member(self, member: Member) -> bool:
        """Remove a member that leaves, or that is dead. Return False, and change nothing, if it has beaten since."""

    def namespaces(self) -> list[NamespaceDeclaration]: ...

    def declare_namespace(
        self, namespace: QualifiedNamespace, num_shards: int, fingerprint: Mapping[str, str]
    ) -> NamespaceDeclaration:
        """Store a namespace unless it exists. Return what the store has, which may differ."""

    def change_fingerprint(self, seen: NamespaceDeclaration, fingerprint: Mapping[str, str]) -> bool:
        """Replace the fingerprint. Return False if the declaration is no longer the one that was seen."""

    # --- ownership of shards: rows of type 1 ---

    def shards(self, shards: Sequence[int]) -> list[ShardOwnership]:
        """Return the ownership records of these shards, in the same order."""

    def claim(self, seen: ShardOwnership, owner: str, metadata: Mapping[str, str]) -> Claim | None:
        """Make `owner` the owner of a shard, with the next version. Return None if the version is not the one seen."""

    def release(self, claims: Sequence[Claim]) -> None:
        """Leave shards without an owner. Those that have been claimed by others since stay as they are."""

    # --- timers: rows of type 2 ---

    def put(self, timer: StoredTimer, replaces: StoredTimer | None, now: datetime) -> None:
        """Store a timer in place of the one that was read, or of none.

        Raise TimerConflict, and change nothing, if the row is in another state or taken. A repeat, whose revision is there
        already, succeeds and changes nothing. Raise TimerRefused if the store can never hold the timer.
        """

    def get(self, key: TimerKey) -> StoredTimer | None: ...

    def delete(self, timer: StoredTimer, now: datetime) -> bool:
        """Delete a timer as it was read. Return False, and change nothing, if the row is in another state or taken."""

    def move(self, timer: StoredTimer, now: datetime, execute_at: datetime) -> StoredTimer | None:
        """Give a timer, as it was read, another due time under the same revision. Return it as it is now.

        It counts as a take that had no attempt: what names the earlier state changes nothing when it comes late, not even
        after the timer was moved back. Return None, and change nothing, if the row is in another state or taken.
        """

    def due(
        self, shard: int, now: datetime, until: datetime, after: Position | datetime | None, limit: int
    ) -> TimerPage:
        """Return timers that are due by `until`, first those that have been due longest.

        `after` is the position in which an earlier page has ended, or a time after which the timers are due. Timers that another cell has taken until after `now` are left out. Those that this cell has taken are included.
        """

    def first_due(
        self, shards: Sequence[int], now: datetime, until: datetime, limit: int, *, own: bool
    ) -> list[TimerPage]:
        """Return the first page of each shard, as `due` does, which costs much less than a request for each.

        Without `own`, timers that this cell has taken are left out, too.
        """

    def take(self, timers: Sequence[StoredTimer], now: datetime, until: datetime) -> list[StoredTimer]:
        """Take timers until a time, as they were read. Return those that were won, as they are now.

        What is taken at `now` cannot be taken, not even by the same cell.
        """

    def postpone(self, timer: StoredTimer, now: datetime, until: datetime) -> bool:
        """Keep a timer that this cell cannot judge from being due before a time. This counts no take."""

    def reschedule(self, attempts: Sequence[NextAttempt]) -> int:
        """End takes of this cell whose timers have another attempt, where it has them under these takes. Return how many."""

    def remove(self, takes: Sequence[Take]) -> int:
        """Remove timers whose last attempt has ended, where this cell has them under these takes. Return how many."""

    def scan(
        self, namespace: QualifiedNamespace, num_shards: int, after: Position | None, limit: int
    ) -> TimerPage:
        """Return timers of a namespace, in the order of shards and ids."""

    # --- operators ---

    def count_timers(self, shards: Sequence[int], now: datetime) -> list[ShardBacklog]:
        """Count the timers of these shards. This reads all of them."""

    def measure_bytes(self) -> int | None:
        """Return roughly how many bytes the table occupies, or None where the server does not say."""

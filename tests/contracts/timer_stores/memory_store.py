"""A timer store in memory, for tests that interleave the steps of several cells. It passes the contract suite."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime

from eventservice.kernel.findings import Finding, check
from timers.stores.encoding import decode_position, encode_position
from timers.stores.port import (
    EPOCH,
    Claim,
    Member,
    NamespaceDeclaration,
    NextAttempt,
    Position,
    QualifiedNamespace,
    ShardBacklog,
    ShardOwnership,
    StoredTimer,
    Take,
    TimerConflict,
    TimerKey,
    TimerPage,
    TimerTooLarge,
    round_up,
)

MAX_BYTES = 10_000_000


@dataclass
class MemoryTables:
    """The tables that the cells share."""

    timers: dict[TimerKey, StoredTimer] = field(default_factory=dict)
    shards: dict[int, ShardOwnership] = field(default_factory=dict)
    members: dict[uuid.UUID, Member] = field(default_factory=dict)
    namespaces: dict[QualifiedNamespace, NamespaceDeclaration] = field(default_factory=dict)
    clock: datetime = EPOCH
    lock: threading.RLock = field(default_factory=threading.RLock)


class MemoryTimerStore:
    def __init__(self, tables: MemoryTables, cell: str) -> None:
        self._tables = tables
        self._cell = cell

    def migrate(self) -> None:
        """Do nothing: there is no schema."""

    def check(self) -> list[Finding]:
        return [check("timer_store_table", True, "in memory")]

    def read_clock(self) -> datetime:
        return self._tables.clock

    def close(self) -> None:
        """Do nothing: there are no connections."""

    # --- members and namespaces -------------------------------------------------------------------------------

    def members(self) -> list[Member]:
        return list(self._tables.members.values())

    def beat(self, member: Member) -> bool:
        with self._tables.lock:
            if member.beats > 1 and member.id not in self._tables.members:
                return False
            self._tables.members[member.id] = member
            return True

    def remove_member(self, member: Member) -> bool:
        with self._tables.lock:
            stored = self._tables.members.get(member.id)
            if stored is None or stored.beats != member.beats:
                return False
            del self._tables.members[member.id]
            return True

    def namespaces(self) -> list[NamespaceDeclaration]:
        return list(self._tables.namespaces.values())

    def declare_namespace(
        self, namespace: QualifiedNamespace, num_shards: int, fingerprint: Mapping[str, str]
    ) -> NamespaceDeclaration:
        declaration = NamespaceDeclaration(namespace, num_shards, dict(fingerprint), 1)
        return self._tables.namespaces.setdefault(namespace, declaration)

    def change_fingerprint(self, seen: NamespaceDeclaration, fingerprint: Mapping[str, str]) -> bool:
        with self._tables.lock:
            stored = self._tables.namespaces.get(seen.namespace)
            if stored is None or stored.version != seen.version:
                return False
            changed = stored._replace(fingerprint=dict(fingerprint), version=seen.version + 1)
            self._tables.namespaces[seen.namespace] = changed
            return True

    # --- shards -----------------------------------------------------------------------------------------------

    def shards(self, shards: Sequence[int]) -> list[ShardOwnership]:
        return [self._tables.shards.get(shard, ShardOwnership(shard, 0)) for shard in shards]

    def claim(self, seen: ShardOwnership, owner: str, metadata: Mapping[str, str]) -> Claim | None:
        with self._tables.lock:
            if self.shards([seen.shard])[0].version != seen.version:
                return None
            claimed = ShardOwnership(seen.shard, seen.version + 1, owner, self._tables.clock, dict(metadata))
            self._tables.shards[seen.shard] = claimed
            return Claim(seen.shard, claimed.version)

    def release(self, claims: Sequence[Claim]) -> None:
        with self._tables.lock:
            for claim in claims:
                stored = self._tables.shards.get(claim.shard)
                if stored is not None and stored.version == claim.version:
                    self._tables.shards[claim.shard] = stored._replace(owner=None)

    # --- timers -----------------------------------------------------------------------------------------------

    def put(self, timer: StoredTimer, replaces: StoredTimer | None, now: datetime) -> None:
        if len(json.dumps(timer.payload)) > MAX_BYTES:
            raise TimerTooLarge(f"payload: a timer has at most {MAX_BYTES} bytes")
        with self._tables.lock:
            stored = self._tables.timers.get(timer.key)
            is_read = stored is None if replaces is None else self._is_unchanged(replaces)
            if is_read and not (replaces and replaces.is_taken(now)):
                self._tables.timers[timer.key] = _copy(timer)
            elif stored is None or stored.revision != timer.revision:
                raise TimerConflict(stored)

    def get(self, key: TimerKey) -> StoredTimer | None:
        return self._tables.timers.get(key)

    def delete(self, timer: StoredTimer, now: datetime) -> bool:
        with self._change(timer, now) as is_unchanged:
            if is_unchanged:
                del self._tables.timers[timer.key]
            return is_unchanged

    def move(self, timer: StoredTimer, now: datetime, execute_at: datetime) -> StoredTimer | None:
        with self._change(timer, now) as is_unchanged:
            if not is_unchanged:
                return None
            moved = timer.build_moved(execute_at)
            self._tables.timers[timer.key] = moved
            return moved

    def due(
        self, shard: int, now: datetime, until: datetime, after: Position | datetime | None, limit: int
    ) -> TimerPage:
        def get_order(timer: StoredTimer) -> tuple[str, str]:
            return timer.execute_at.isoformat(timespec="milliseconds"), str(timer.key.uuid)

        def is_after(timer: StoredTimer) -> bool:
            if isinstance(after, datetime):
                return timer.execute_at > after
            return after is None or get_order(timer) > tuple(decode_position(after))

        with self._tables.lock:
            found = [
                timer
                for timer in self._tables.timers.values()
                if timer.key.shard == shard
                and timer.execute_at <= until
                and (timer.taken_until <= now or timer.taken_by == self._cell)
                and is_after(timer)
            ]
        page = sorted(found, key=get_order)[:limit]
        return TimerPage(page, encode_position(*get_order(page[-1])) if len(page) == limit else None)

    def first_due(
        self, shards: Sequence[int], now: datetime, until: datetime, limit: int, *, own: bool
    ) -> list[TimerPage]:
        pages = [self.due(shard, now, until, None, limit) for shard in shards]
        return pages if own else [page.leave_out_taken(now) for page in pages]

    def take(self, timers: Sequence[StoredTimer], now: datetime, until: datetime) -> list[StoredTimer]:
        won = []
        for timer in timers:
            with self._change(timer, now) as is_unchanged:
                if is_unchanged:
                    taken = replace(
                        timer, takes=timer.takes + 1, taken_until=round_up(until), taken_by=self._cell
                    )
                    self._tables.timers[timer.key] = taken
                    won.append(taken)
        return won

    def postpone(self, timer: StoredTimer, now: datetime, until: datetime) -> bool:
        with self._change(timer, now) as is_unchanged:
            if is_unchanged:
                postponed = replace(timer, taken_until=round_up(until), taken_by=None)
                self._tables.timers[timer.key] = postponed
            return is_unchanged

    def reschedule(self, attempts: Sequence[NextAttempt]) -> int:
        with self._tables.lock:
            return sum(map(self._reschedule, attempts))

    def _reschedule(self, attempt: NextAttempt) -> bool:
        stored = self._find_taken(attempt.take)
        if stored is None:
            return False
        self._tables.timers[stored.key] = replace(
            stored,
            execute_at=round_up(attempt.execute_at),
            taken_until=EPOCH,
            taken_by=None,
            progress=attempt.progress or stored.progress,
        )
        return True

    def remove(self, takes: Sequence[Take]) -> int:
        with self._tables.lock:
            found = [stored for take in takes if (stored := self._find_taken(take))]
            for stored in found:
                del self._tables.timers[stored.key]
            return len(found)

    def scan(
        self, namespace: QualifiedNamespace, num_shards: int, after: Position | None, limit: int
    ) -> TimerPage:
        def get_order(timer: StoredTimer) -> tuple[int, str]:
            return timer.key.shard, timer.key.timer_id

        with self._tables.lock:
            found = [
                timer
                for timer in self._tables.timers.values()
                if timer.key.namespace == namespace
                and (after is None or get_order(timer) > tuple(decode_position(after)))
            ]
        page = sorted(found, key=get_order)[:limit]
        return TimerPage(page, encode_position(*get_order(page[-1])) if len(page) == limit else None)

    # --- operators --------------------------------------------------------------------------------------------

    def count_timers(self, shards: Sequence[int], now: datetime) -> list[ShardBacklog]:
        def count(shard: int) -> ShardBacklog:
            mine = [timer for timer in self._tables.timers.values() if timer.key.shard == shard]
            overdue = [timer for timer in mine if timer.execute_at <= now and timer.taken_until <= now]
            return ShardBacklog(shard, len(mine), len(overdue))

        return [count(shard) for shard in shards]

    def measure_bytes(self) -> int | None:
        return None

    # --- rows -------------------------------------------------------------------------------------------------

    @contextmanager
    def _change(self, timer: StoredTimer, now: datetime) -> Iterator[bool]:
        """Lock the tables, and tell whether a timer may be changed: as it was read, and not taken."""
        with self._tables.lock:
            yield self._is_unchanged(timer) and not timer.is_taken(now)

    def _is_unchanged(self, read: StoredTimer) -> bool:
        stored = self._tables.timers.get(read.key)
        return stored is not None and _get_state(stored) == _get_state(read)

    def _find_taken(self, take: Take) -> StoredTimer | None:
        stored = self._tables.timers.get(take.key)
        return stored if stored and stored.take == take and stored.taken_by == self._cell else None


def _get_state(timer: StoredTimer) -> tuple[object, ...]:
    return timer.execute_at, timer.revision, timer.takes, timer.taken_until


def _copy(timer: StoredTimer) -> StoredTimer:
    """Return what a store would read: JSON, and nothing that the caller can still change."""
    return replace(timer, payload=json.loads(json.dumps(timer.payload)))

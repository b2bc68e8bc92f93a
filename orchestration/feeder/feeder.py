"""The passes of a feeder over the shards of one timer store."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import ceil

from eventservice.kernel.ids import new_id
from eventservice.kernel.logging import get_logger
from orchestration.feeder.ports import CellCalls
from orchestration.feeder.store_membership import StoreMembership
from orchestration.lifecycle.feeding import compute_take_end
from timers.stores.clocks import MAX_CLOCK_SKEW, measure_skew
from timers.stores.port import NextAttempt, Position, QualifiedNamespace, StoredTimer, TimerStore

log = get_logger(__name__)

# Marks that are applied in one go.
MAX_MARKS = 500
# A shard is read page by page. After this many, the next shard has its turn.
PAGE_SIZE = 500
MAX_PAGES = 10
# Each process looks at all shards in about so many passes, whoever owns them, for timers that nobody takes.
SWEEP_PASSES = 30
MAX_SWEPT_SHARDS = 16
SWEEP_AGE = timedelta(seconds=30)
# A timer that this cell cannot judge is left to others for so long.
POSTPONEMENT = timedelta(minutes=1)
NAMESPACES_SECONDS = 10.0
# Calls that wait for a timer which is gone are looked for this often, and not before their timers are this late.
WAITING_SECONDS = 60.0
WAITING_AGE = timedelta(seconds=60)
MAX_WAITING = 100


@dataclass(frozen=True, slots=True)
class FeederOptions:
    # How long before it is due a timer is taken. Longer than the time between two passes.
    look_ahead: timedelta = timedelta(seconds=5)
    # Timers that one pass takes.
    max_taken: int = 10_000


DEFAULT_OPTIONS = FeederOptions()


@dataclass(slots=True)
class FeedResult:
    """How far one pass came. `was_able` says that it could take timers, if there were any."""

    was_able: bool = False
    applied: int = 0
    fed: int = 0
    unknown: int = 0
    has_more: bool = False


@dataclass(slots=True)
class _Room:
    """The number of timers that may still be taken in a pass."""

    calls: CellCalls
    until: datetime
    left: int
    tenants: dict[uuid.UUID, int] = field(default_factory=dict)

    def take(self, timer: StoredTimer) -> bool:
        tenant_id = timer.key.namespace.tenant_id
        if tenant_id not in self.tenants:
            self.tenants[tenant_id] = self.calls.find_room(tenant_id, self.until)
        if min(self.left, self.tenants[tenant_id]) < 1:
            return False
        self.left -= 1
        self.tenants[tenant_id] -= 1
        return True


class Feeder:
    """The feeder of one timer store in one process."""

    def __init__(
        self,
        store: TimerStore,
        calls: CellCalls,
        *,
        clock: Callable[[], float],
        options: FeederOptions = DEFAULT_OPTIONS,
        create_id: Callable[[], uuid.UUID] = new_id,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        """`clock` is that of `read_boot_time`."""
        self._store = store
        self._calls = calls
        self._clock = clock
        self._options = options
        self._membership = StoreMembership(store, clock, create_id, metadata or {})
        self._num_shards = 0
        # Namespaces that other cells send in another way.
        self.differing: set[QualifiedNamespace] = set()
        self._namespaces_at = self._waiting_at = float("-inf")
        # Where reading goes on in shards whose backlog was not read to its end.
        self._positions: dict[int, Position] = {}
        self._turn = 0
        self._swept = 0
        self.clock_skew: timedelta | None = None

    def run_pass(self) -> FeedResult:
        """Do what is to be done now.

        Raise TimerStoreError, or an error of the database, if either is unavailable. The next pass does the rest.
        """
        result = FeedResult(applied=self._apply_marks())
        now = self._calls.read_now()
        if self._calls.is_paused() or not self._is_clock_right():
            return result
        self._read_namespaces()
        self._membership.rebalance(self._num_shards)
        room = _Room(self._calls, now + self._options.look_ahead, self._options.max_taken)
        self._feed_shards(now, room, result)
        self._sweep(now, room, result)
        self._close_waiting(now)
        # Only a pass that could take shows that this process does its share.
        self._membership.beat()
        result.was_able = True
        return result

    def leave(self) -> None:
        """Let others take over at once. What has been taken is protected until its takes end."""
        self._membership.leave()

    # --- the end of takes ---

    def _apply_marks(self) -> int:
        marks = self._calls.list_marks(MAX_MARKS)
        ended = [mark.take for mark in marks if mark.next_at is None]
        if ended:
            self._store.remove(ended)
        attempts = [
            NextAttempt(mark.take, mark.next_at, mark.progress) for mark in marks if mark.next_at is not None
        ]
        if attempts:
            self._store.reschedule(attempts)
        if marks:
            self._calls.delete_marks(marks)
        return len(marks)

    # --- whether and what to take ---

    def _is_clock_right(self) -> bool:
        """Return whether the clocks agree. Otherwise takes of other cells would seem to have ended."""
        self.clock_skew = measure_skew(self._store, self._calls.read_now)
        if abs(self.clock_skew) <= MAX_CLOCK_SKEW:
            return True
        log.error("timer_store_clock_differs", seconds=self.clock_skew.total_seconds())
        return False

    def _read_namespaces(self) -> None:
        if self._clock() - self._namespaces_at < NAMESPACES_SECONDS:
            return
        declared = self._store.namespaces()
        self._num_shards = max((one.num_shards for one in declared), default=0)
        self.differing = {
            one.namespace for one in declared if one.fingerprint != self._calls.get_fingerprint(one.namespace)
        }
        self._namespaces_at = self._clock()

    # --- passes ---

    def _feed_shards(self, now: datetime, room: _Room, result: FeedResult) -> None:
        owned = self._membership.shards
        start = self._turn % max(1, len(owned))
        self._turn += 1
        for shard in owned[start:] + owned[:start]:
            if room.left < 1:
                result.has_more = True
                return
            self._feed_shard(shard, now, room, result)

    def _feed_shard(self, shard: int, now: datetime, room: _Room, result: FeedResult) -> None:
        position = self._positions.pop(shard, None)
        for _ in range(MAX_PAGES):
            page = self._store.due(shard, now, room.until, position, PAGE_SIZE)
            self._feed_page(page.timers, now, room, result)
            position = page.after
            if position is None:
                return
        if position is not None:
            # The rest is read by the next pass, and then the beginning again.
            self._positions[shard] = position
            result.has_more = True

    def _feed_page(
        self, timers: Sequence[StoredTimer], now: datetime, room: _Room, result: FeedResult
    ) -> None:
        """Take the timers that nobody has taken, and feed them with those that this cell has taken before."""
        own = [timer for timer in timers if timer.is_taken(now)]
        taken = self._take([timer for timer in timers if not timer.is_taken(now)], now, room, result)
        ready = (self._calls.select_unfed(own) if own else []) + taken
        if ready:
            result.fed += self._calls.feed(ready)

    def _take(
        self, free: Sequence[StoredTimer], now: datetime, room: _Room, result: FeedResult
    ) -> list[StoredTimer]:
        known = []
        for timer in free:
            if timer.key.namespace in self.differing:
                continue  # a cell that sends it as declared takes it
            if self._calls.knows(timer):
                known.append(timer)
            else:
                result.unknown += self._store.postpone(timer, now, now + POSTPONEMENT)
        busy = self._calls.find_busy(known) if known else set()
        by_end = defaultdict(list)
        for timer in known:
            if timer.revision not in busy and room.take(timer):
                by_end[compute_take_end(timer, now, self._options.look_ahead)].append(timer)
        return [timer for end, group in by_end.items() for timer in self._store.take(group, now, end)]

    def _sweep(self, now: datetime, room: _Room, result: FeedResult) -> None:
        """Look after a few shards of others: an owner may be alive and unable to do its work."""
        count = min(MAX_SWEPT_SHARDS, ceil(self._num_shards / SWEEP_PASSES))
        owned = set(self._membership.shards)
        for _ in range(count):
            shard = self._swept % self._num_shards
            self._swept = shard + 1
            if shard not in owned:
                page = self._store.due(shard, now, now - SWEEP_AGE, None, PAGE_SIZE)
                self._feed_page(page.timers, now, room, result)

    def _close_waiting(self, now: datetime) -> None:
        """Close calls whose timers were removed or changed in another cell, or before this database was restored."""
        if self._clock() - self._waiting_at < WAITING_SECONDS:
            return
        gone = []
        for call in self._calls.list_waiting(now - WAITING_AGE, MAX_WAITING):
            stored = self._store.get(call.key)
            if stored is None or stored.revision != call.revision:
                gone.append(call)
        if gone:
            self._calls.close_waiting(gone)
        self._waiting_at = self._clock()

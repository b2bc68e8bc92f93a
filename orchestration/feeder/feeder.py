"""The passes of a feeder over the shards of one timer store."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil

from eventservice.kernel.ids import new_id
from eventservice.kernel.logging import get_logger
from orchestration.feeder.ports import CellCalls
from orchestration.feeder.store_membership import StoreMembership
from orchestration.lifecycle.feeding import compute_start_before, compute_take_end
from timers.stores.clocks import MAX_CLOCK_SKEW, measure_skew
from timers.stores.encoding import split_batches
from timers.stores.port import (
    NextAttempt,
    Position,
    QualifiedNamespace,
    Revision,
    StoredTimer,
    TimerStore,
)

log = get_logger(__name__)

# Room for so many timers is worth a pass.
MUCH_ROOM = 100
# Marks that are applied in one go.
MAX_MARKS = 500
# One request reads the first due timers of so many shards, and so many of each.
SHARDS_AT_ONCE, FIRST_PAGE_SIZE = 16, 50
# In a shard with a backlog, timers that have been due for less than this are not read behind the others. The end of an
# attempt, with the time of the next one, has usually reached the store by then.
RECENT = timedelta(seconds=10)
# A process of this cell may have died between taking and feeding. What is taken is looked at in one of so many passes, and when
# this process owns other shards than before.
OWN_PASSES = 5
# Each process looks at all shards in about so many passes, whoever owns them, for timers that nobody takes.
SWEEP_PASSES = 30
SWEEP_AGE = timedelta(seconds=30)
# A timer that this cell cannot judge is left to others for so long.
POSTPONEMENT = timedelta(minutes=1)
NAMESPACES_SECONDS = 10.0
# Calls that wait for a timer which is gone are looked for this often, and not before their timers are this late.
WAITING_SECONDS = 10.0
WAITING_AGE = timedelta(seconds=10)
MAX_WAITING = 100


@dataclass(frozen=True, slots=True)
class FeederOptions:
    # How long before it is due a timer is taken. Longer than the time between two passes.
    look_ahead: timedelta = timedelta(seconds=5)
    # Timers that this process has taken and whose attempts have not started.
    max_taken: int = 10_000
    # A pass reads a page of due timers of each shard. Of all shards that have more, it reads so many more pages of those that
    # became due recently, and so many of the others.
    page_size: int = 500
    extra_pages: int = 20


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
class _Allowance:
    """How many timers may be taken now, and how many more once those of the backlog have their turn."""

    left: int
    reserved: int = 0


class _Room:
    """The timers that a pass may still take, and the pages of recent ones that it may read beyond the first of a shard."""

    def __init__(
        self, calls: CellCalls, until: datetime, limit: int, pages: int, *, reserve: int | None
    ) -> None:
        """`reserve` says how half of an odd number is rounded, if half is reserved for the backlog."""
        self._calls = calls
        self.until = until
        self.pages = pages
        self._reserve = reserve
        self._total = self._split(limit)
        self._tenants: dict[uuid.UUID, _Allowance] = {}
        # Tenants of which timers were left because of their own limits.
        self.full: set[uuid.UUID] = set()

    @property
    def left(self) -> int:
        return self._total.left

    def take(self, timer: StoredTimer) -> bool:
        tenant_id = timer.key.namespace.tenant_id
        if tenant_id not in self._tenants:
            self._tenants[tenant_id] = self._split(self._calls.find_room(tenant_id, self.until))
        allowances = (self._total, self._tenants[tenant_id])
        if any(one.left < 1 for one in allowances):
            if self._tenants[tenant_id].left < 1:
                self.full.add(tenant_id)
            return False
        for one in allowances:
            one.left -= 1
        return True

    def release_reserve(self) -> None:
        for one in (self._total, *self._tenants.values()):
            one.left, one.reserved = one.left + one.reserved, 0
        self._reserve = None

    def _split(self, limit: int) -> _Allowance:
        reserved = 0 if self._reserve is None else (limit + self._reserve) // 2
        return _Allowance(limit - reserved, reserved)


@dataclass(slots=True)
class _Backlog:
    """The place where reading goes on in a shard that has more due timers than a page."""

    position: Position
    # Among the recent ones. None: at the first of them.
    recent: Position | None = None


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
        self._backlogs: dict[int, _Backlog] = {}
        # Timers that this process has taken: their tenants, and when their attempts must have started.
        self._unstarted: dict[Revision, tuple[uuid.UUID, datetime]] = {}
        # Timers that were read in this pass and not fed yet.
        self._read: list[StoredTimer] = []
        self._checks_own = True
        # Of the last pass.
        self._full: set[uuid.UUID] = set()
        self._turn = 0
        self._swept = 0
        self.clock_skew: timedelta | None = None

    def run_pass(self) -> FeedResult:
        """Do what is to be done now.

        Raise TimerStoreError, or an error of the database, if either is unavailable. The next pass does the rest.
        """
        self._read = []  # what is left of a pass that has failed
        applied = self._apply_marks()
        result = FeedResult(applied=applied, has_more=applied == MAX_MARKS)
        now = self._calls.read_now()
        if self._calls.is_paused() or not self._is_clock_right():
            return result
        self._read_namespaces()
        before = self._membership.shards
        self._membership.rebalance(self._num_shards)
        self._turn += 1
        self._checks_own = self._turn % OWN_PASSES == 0 or before != self._membership.shards
        room = _Room(
            self._calls,
            now + self._options.look_ahead,
            self._count_room(now),
            self._options.extra_pages,
            reserve=self._turn % 2 if self._backlogs else None,
        )
        self._feed_shards(now, room, result)
        self._sweep(now, room, result)
        self._full = room.full
        self._review_waiting(now)
        # Only a pass that could take shows that this process does its share.
        self._membership.beat()
        result.was_able = True
        return result

    def waits_for_room(self) -> bool:
        """Return whether the last pass left timers because of the limits of their tenants."""
        return bool(self._full)

    def has_new_room(self) -> bool:
        """Return whether one of these tenants has room for many timers now."""
        until = self._calls.read_now() + self._options.look_ahead
        return any(self._calls.find_room(tenant_id, until) >= MUCH_ROOM for tenant_id in self._full)

    def leave(self) -> None:
        """Let others take over at once. What has been taken is protected until its takes end."""
        self._membership.leave()

    def end_takes(self) -> None:
        """Tell the store what has become of the timers that this process has taken, after its last attempt has ended.

        If no engine of this cell is left, other cells can take at once what is ready to start.
        """
        while self._calls.release_ready(MAX_MARKS) or self._apply_marks():
            pass

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

    def _count_room(self, now: datetime) -> int:
        """Return how many timers this process may take. Most of those that it has taken usually have started."""
        taken = {key: one for key, one in self._unstarted.items() if one[1] >= now}
        if len(taken) > self._options.max_taken - self._options.page_size:
            unstarted = self._calls.find_unstarted([(one[0], key) for key, one in taken.items()])
            taken = {key: one for key, one in taken.items() if key in unstarted}
        self._unstarted = taken
        return max(0, self._options.max_taken - len(taken))

    # --- passes ---

    def _feed_shards(self, now: datetime, room: _Room, result: FeedResult) -> None:
        """Feed what has become due, then the backlogs. Neither hides the other, and each has half of the room."""
        owned = self._membership.shards
        start = self._turn % max(1, len(owned))
        shards = owned[start:] + owned[:start]
        self._backlogs = {shard: one for shard, one in self._backlogs.items() if shard in owned}
        for group in split_batches(shards, SHARDS_AT_ONCE):
            if room.left < 1:
                result.has_more = True
                break
            self._feed_group(group, now, room, result)
        self._feed_read(now, room, result)
        room.release_reserve()
        self._feed_backlogs(now, room, result)
        self._feed_read(now, room, result)

    def _feed_group(self, shards: Sequence[int], now: datetime, room: _Room, result: FeedResult) -> None:
        """Read what has become due in a few shards: usually little, so the first pages are small."""
        behind = [shard for shard in shards if shard in self._backlogs]
        others = [shard for shard in shards if shard not in self._backlogs]
        limit = min(FIRST_PAGE_SIZE, self._options.page_size)
        own = self._checks_own
        pages = self._store.first_due(others, now, room.until, limit, own=own) if others else []
        for shard, page in zip(others, pages, strict=True):
            self._add(page.timers, now, room, result)
            after = page.after and self._read_page(shard, page.after, now, room, result)
            if after is not None:
                self._backlogs[shard] = _Backlog(after)
        for shard in behind:
            backlog = self._backlogs[shard]
            backlog.recent = self._read_page(shard, backlog.recent or now - RECENT, now, room, result)
            while backlog.recent is not None and room.pages > 0:
                room.pages -= 1
                backlog.recent = self._read_page(shard, backlog.recent, now, room, result)

    def _feed_backlogs(self, now: datetime, room: _Room, result: FeedResult) -> None:
        """Read a page of each backlog in turn. The next pass goes on, and at the end of a backlog begins again."""
        for _ in range(self._options.extra_pages):
            if not self._backlogs or room.left < 1:
                break
            shard = next(iter(self._backlogs))
            backlog = self._backlogs.pop(shard)
            after = self._read_page(shard, backlog.position, now, room, result)
            if after is not None:
                backlog.position = after
                self._backlogs[shard] = backlog  # behind the others
        result.has_more |= bool(self._backlogs)

    def _read_page(
        self, shard: int, after: Position | datetime | None, now: datetime, room: _Room, result: FeedResult
    ) -> Position | None:
        """Read a page of due timers. Return where the next one begins."""
        page = self._store.due(shard, now, room.until, after, self._options.page_size)
        self._add(page.timers, now, room, result)
        return page.after

    def _add(self, timers: Sequence[StoredTimer], now: datetime, room: _Room, result: FeedResult) -> None:
        """Feed timers when there is a page of them: most shards have few that are due, and each batch is several statements."""
        self._read += timers
        if len(self._read) >= self._options.page_size:
            self._feed_read(now, room, result)

    def _feed_read(self, now: datetime, room: _Room, result: FeedResult) -> None:
        """Take the timers that nobody has taken, and feed them with those that this cell has taken before."""
        timers, self._read = self._read, []
        if not timers:
            return
        own = [timer for timer in timers if timer.is_taken(now)]
        taken = self._take([timer for timer in timers if not timer.is_taken(now)], now, room, result)
        ready = (self._calls.select_unfed(own) if own else []) + taken
        for timer in ready:
            self._unstarted[timer.revision] = timer.key.namespace.tenant_id, compute_start_before(timer)
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
        count = min(SHARDS_AT_ONCE, ceil(self._num_shards / SWEEP_PASSES))
        owned = set(self._membership.shards)
        swept = [(self._swept + number) % self._num_shards for number in range(count)]
        self._swept += count
        others = [shard for shard in swept if shard not in owned]
        if others:
            for page in self._store.first_due(others, now, now - SWEEP_AGE, FIRST_PAGE_SIZE, own=True):
                self._read += page.timers
            self._feed_read(now, room, result)

    def _review_waiting(self, now: datetime) -> None:
        """Let calls that have waited for too long follow their timers, which other cells may have taken.

        Close those whose timers were removed or changed in another cell, or before this database was restored.
        """
        if self._clock() - self._waiting_at < WAITING_SECONDS:
            return
        gone = []
        for call in self._calls.list_waiting(now - WAITING_AGE, MAX_WAITING):
            stored = self._store.get(call.key)
            if stored is None or stored.revision != call.revision:
                gone.append(call)
                continue
            due_at = max(stored.execute_at, stored.taken_until) if stored.is_taken(now) else stored.execute_at
            self._calls.follow_timer(call, due_at)
        if gone:
            self._calls.close_waiting(gone)
        self._waiting_at = self._clock()

"""Set, change, delete and read timers in a timer store.

Every change goes through the row, whatever the call of the timer in this cell says, because another cell may have it. A
timer that is taken cannot be changed: its callback may be under way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from math import ceil

from eventservice.kernel.errors import Conflict, NotFound
from eventservice.kernel.logging import get_logger
from eventservice.kernel.ttl_cache import TTLCache
from orchestration.feeder.database_calls import DatabaseCalls
from orchestration.feeder.feeder import DEFAULT_OPTIONS, NAMESPACES_SECONDS
from orchestration.feeder.ports import CellCalls, WaitingCall
from orchestration.lifecycle.feeding import compute_take_end
from timers.cell import get_cell_id
from timers.cell_stores import get_cell_store
from timers.stores.clocks import MAX_CLOCK_SKEW, measure_skew
from timers.stores.port import (
    Position,
    QualifiedNamespace,
    Revision,
    StoredTimer,
    StoreUnavailable,
    TimerConflict,
    TimerKey,
    TimerPage,
    TimerStore,
)

log = get_logger(__name__)

# The fingerprints that are declared in each store, as this process has read them.
_declared: TTLCache[str, Mapping[QualifiedNamespace, Mapping[str, str]]] = TTLCache(NAMESPACES_SECONDS)
# How often a change is tried while others change the same timer.
MAX_RACES = 10
# An attempt usually ends long before its take.
MAX_RETRY_AFTER_SECONDS = 5


class TimerFiring(Conflict):
    """The timer is taken: its callback is about to be sent, or under way."""

    def __init__(self, retry_after: int) -> None:
        detail = "The callback of the timer is being sent, or about to be sent. It can be changed when the attempt has ended."
        super().__init__("timer_firing", detail)
        self.retry_after = retry_after


class StoredTimers:
    """The timers of one store, as the clients of this cell change them."""

    def __init__(
        self,
        store: TimerStore,
        calls: CellCalls,
        cell: str,
        look_ahead: timedelta,
        sends: Callable[[QualifiedNamespace], bool] = lambda namespace: True,
    ) -> None:
        """`sends` says whether this cell sends the timers of a namespace, as its feeder does."""
        self._store = store
        self._calls = calls
        self._cell = cell
        self._look_ahead = look_ahead
        self._sends = sends

    def set(self, timer: StoredTimer) -> None:
        """Set a timer. A pending one with the same key is overwritten. A repeat, with the same revision, changes nothing.

        Raise TimerFiring, or TimerStoreError.
        """

        def put(now: datetime) -> bool:
            stored = self._store.get(timer.key)
            if stored is None or stored.revision != timer.revision:
                self._require_free(stored, now)
                self._put(timer, stored, now)
            return True

        self._try(put)

    def change(self, key: TimerKey, build: Callable[[StoredTimer], StoredTimer]) -> None:
        """Replace a pending timer by what `build` returns. Raise NotFound, TimerFiring, or TimerStoreError."""

        def put(now: datetime) -> bool:
            stored = self._require(key, now)
            self._put(build(stored), stored, now)
            return True

        self._try(put)

    def delete(self, key: TimerKey, revision: Revision | None = None) -> None:
        """Delete a pending timer, or only this revision of it. Raise NotFound, TimerFiring, or TimerStoreError."""

        def delete(now: datetime) -> bool:
            stored = self._require(key, now, revision)
            if not self._store.delete(stored, now):
                return False
            self._close_call(stored)
            return True

        self._try(delete)

    def move(self, key: TimerKey, revision: Revision, execute_at: datetime) -> None:
        """Give this revision of a pending timer another due time, such as that of its next attempt. A pass takes it.

        Raise NotFound if the timer is gone or was changed, TimerFiring, or TimerStoreError.
        """

        def move(now: datetime) -> bool:
            stored = self._require(key, now, revision)
            return self._store.move(stored, now, execute_at) is not None

        self._try(move)

    def find(self, key: TimerKey) -> StoredTimer | None:
        return self._store.get(key)

    def scan(
        self, namespace: QualifiedNamespace, num_shards: int, after: Position | None, limit: int
    ) -> TimerPage:
        """Return timers of a namespace, in the order of shards and ids."""
        return self._store.scan(namespace, num_shards, after, limit)

    def _try(self, change: Callable[[datetime], bool]) -> None:
        for _ in range(MAX_RACES):
            try:
                if change(self._calls.read_now()):
                    return
            except TimerConflict:
                continue
        raise Conflict("already_exists", "Other requests are changing this timer at the moment: try again.")

    def _require(self, key: TimerKey, now: datetime, revision: Revision | None = None) -> StoredTimer:
        stored = self._store.get(key)
        if stored is None or revision not in (None, stored.revision):
            raise NotFound("timer")
        self._require_free(stored, now)
        return stored

    def _require_free(self, stored: StoredTimer | None, now: datetime) -> None:
        if stored is None or stored.taken_by is None:
            return
        if stored.is_taken(now):
            left = ceil((stored.taken_until - now).total_seconds())
            raise TimerFiring(min(left, MAX_RETRY_AFTER_SECONDS))
        if abs(measure_skew(self._store, self._calls.read_now)) > MAX_CLOCK_SKEW:
            # The take of another cell only seems to have ended.
            raise StoreUnavailable("the clocks of the timer store and of the database differ")

    def _put(self, timer: StoredTimer, replaces: StoredTimer | None, now: datetime) -> None:
        is_near = (
            timer.execute_at <= now + self._look_ahead
            and not self._calls.is_paused()
            and self._sends(timer.key.namespace)
        )
        if is_near:
            # Whoever looks after its shard would perhaps come too late.
            end = compute_take_end(timer, now, self._look_ahead)
            timer = replace(timer, takes=timer.takes + 1, taken_until=end, taken_by=self._cell)
        self._store.put(timer, replaces, now)
        if replaces is not None:
            self._close_call(replaces)
        if is_near:
            self._feed(timer)

    def _feed(self, timer: StoredTimer) -> None:
        try:
            self._calls.feed([timer])
        except Exception:
            # The timer is stored, which is what the client asked for. A pass of this cell feeds it, or its take ends. It is
            # not released here: the calls may have been written although the answer was lost.
            log.exception("timer_not_fed", timer=str(timer.revision))

    def _close_call(self, timer: StoredTimer) -> None:
        """Close the call of a timer that was replaced or deleted. The feeder closes it later if this fails."""
        try:
            self._calls.close_waiting([WaitingCall(timer.key, timer.revision, timer.takes)])
        except Exception:
            # The change has taken effect: the client must not believe that it has failed.
            log.exception("waiting_call_not_closed", timer=str(timer.revision))


def get_stored_timers(store: str) -> StoredTimers:
    """Return the timers of the store with this name. Raise StoreUnavailable if it is not configured."""
    cell_store, calls = get_cell_store(store), DatabaseCalls(store)

    def read_fingerprints() -> dict[QualifiedNamespace, Mapping[str, str]]:
        return {one.namespace: one.fingerprint for one in cell_store.namespaces()}

    def sends(namespace: QualifiedNamespace) -> bool:
        declared = _declared.get(store, read_fingerprints)
        if namespace not in declared:  # it has been declared since
            _declared.clear()
            declared = _declared.get(store, read_fingerprints)
        return declared.get(namespace) == calls.get_fingerprint(namespace)

    return StoredTimers(cell_store, calls, str(get_cell_id()), DEFAULT_OPTIONS.look_ahead, sends)

"""A world of three cells that share a timer store, in which a seeded scheduler decides who takes the next step.

Every use of a port is a step: before and after it, any other process can go on, and it can fail in each way that the port
allows. Processes are killed and frozen, databases restored, clocks set, and a cell is lost. The promises are checked
with each callback that is sent, and at the end.

Clocks differ by less than the second above which a cell takes nothing. Whether a callback is early is judged by the clock
of the client, so it may be early by that second.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import greenlet

from eventservice.kernel.errors import DomainError
from orchestration.feeder.feeder import Feeder, FeederOptions
from orchestration.feeder.timer_changes import StoredTimers
from tests.contracts.timer_stores.memory_store import MemoryTables, MemoryTimerStore
from tests.simulation.cell import Database, MemoryCalls, Started
from timers.stores.port import (
    OutcomeUnknown,
    QualifiedNamespace,
    Revision,
    StoredTimer,
    StoreUnavailable,
    TimerKey,
    TimerStoreError,
    round_up,
)

BEGIN = datetime(2026, 3, 1, 12, tzinfo=UTC)
NAMESPACE = QualifiedNamespace(uuid.UUID(int=1), "alerts")
NUM_SHARDS = 3
CELLS, ENGINES = 3, 2
# A shard with two due timers has a backlog.
OPTIONS = FeederOptions(max_taken=5, page_size=1, extra_pages=1)
# How long processes fail and clients change timers, and how long everything works afterwards.
TROUBLE_SECONDS, PEACE_SECONDS = 150.0, 400.0
PASS_SECONDS = 2.0
CALLBACK_SECONDS = 5.0
# A write that nobody has an answer to takes effect within this time, if at all. A client that has written a timer for the
# first time and does not know the outcome does not delete it before: the late write would bring it back.
MAX_WRITE_SECONDS = 8.0


class DatabaseFailure(Exception):
    """The relational database did not answer."""


@dataclass
class Process:
    """A process of a cell, with a thread for its feeder and one for its engine."""

    id: uuid.UUID
    cell: Cell
    is_alive: bool = True
    is_stopping: bool = False
    in_flight: int = 0
    frozen_until: float = 0.0


@dataclass
class Cell:
    number: int
    database: Database
    clock_offset: float = 0.0
    processes: list[Process] = field(default_factory=list)
    backup: Database | None = None
    is_lost: bool = False


@dataclass
class Task:
    process: Process | None
    run: greenlet.greenlet
    wake_at: float = 0.0


@dataclass
class Delivery:
    """A callback as its target has received it."""

    at: float
    cell: int
    number: int
    ok: bool


@dataclass
class Promise:
    """A timer as its client has set it last, and whether that was acknowledged."""

    timer: StoredTimer
    is_certain: bool = True


class Broken(AssertionError):
    """A promise was broken. The message names the seed."""


class World:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.now = 0.0
        self.hub = greenlet.getcurrent()
        self.tables = MemoryTables()
        self.cells: list[Cell] = []
        self.tasks: list[Task] = []
        self.current: Task | None = None
        self.has_trouble = True
        self.store_outage_until = 0.0
        self.late_writes: list[tuple[float, Callable[[], object]]] = []
        self.deliveries: dict[Revision, list[Delivery]] = {}
        self.deliveries_before_repeat: dict[Revision, list[Delivery]] = {}
        # Since when a revision may not be delivered: its replacement or deletion was acknowledged.
        self.void_since: dict[Revision, float] = {}
        # Before which a revision may not be delivered.
        self.earliest: dict[Revision, datetime] = {}
        self.settled_at: dict[TimerKey, float] = {}
        self.promises: dict[TimerKey, Promise | None] = {}
        self.history: list[str] = []

    # --- running ---

    def run(self) -> World:
        """Run one schedule. Raise Broken if a promise is broken."""
        for number in range(CELLS):
            self.cells.append(Cell(number, Database(f"cell-{number}")))
            for _ in range(ENGINES):
                self._start_process(self.cells[number])
        self._build_store(self.cells[0]).declare_namespace(NAMESPACE, NUM_SHARDS, {})
        for client in range(3):
            self._spawn(None, partial(self._run_client, client))
        self._spawn(None, self._run_trouble)
        self._run_until(TROUBLE_SECONDS)
        self._make_peace()
        self._run_until(TROUBLE_SECONDS + PEACE_SECONDS)
        self._check_end()
        return self

    def _run_until(self, end: float) -> None:
        while self.now < end:
            self.tasks = [task for task in self.tasks if not task.run.dead and self._is_alive(task)]
            ready = [task for task in self.tasks if self._get_wake_time(task) <= self.now]
            if not ready:
                self._advance(min([end, *map(self._get_wake_time, self.tasks)]))
                continue
            self.current = self.random.choice(ready)
            self.current.run.switch()
            self.current = None
            self._advance(self.now + self.random.choice((0.0, 0.0, 0.001, 0.02)))

    def _is_alive(self, task: Task) -> bool:
        return task.process is None or task.process.is_alive

    def _get_wake_time(self, task: Task) -> float:
        return max(task.wake_at, task.process.frozen_until if task.process else 0.0)

    def _advance(self, to: float) -> None:
        self.now = max(self.now, to)
        self.tables.clock = self.read_true_time()
        for late in [one for one in self.late_writes if one[0] <= self.now]:
            self.late_writes.remove(late)
            late[1]()

    def read_true_time(self) -> datetime:
        return BEGIN + timedelta(seconds=round(self.now, 6))

    def _spawn(self, process: Process | None, function: Callable[[], object]) -> None:
        self.tasks.append(Task(process, greenlet.greenlet(function, parent=self.hub), self.now))

    def pause(self, seconds: float = 0.0) -> None:
        """Let others go on."""
        task = self.current
        assert task is not None
        task.wake_at = self.now + seconds
        self.hub.switch()

    def log(self, text: str) -> None:
        self.history.append(f"{self.now:9.3f} {text}")

    def create_id(self) -> uuid.UUID:
        return uuid.UUID(int=self.random.getrandbits(128))

    def happens(self, probability: float) -> bool:
        return self.has_trouble and self.random.random() < probability

    # --- processes ---

    def _build_store(self, cell: Cell) -> MemoryTimerStore:
        return MemoryTimerStore(self.tables, cell.database.cell_id)

    def _build_calls(self, cell: Cell) -> MemoryCalls:
        offset = lambda: timedelta(seconds=cell.clock_offset)  # noqa: E731
        return MemoryCalls(cell.database, lambda: self.read_true_time() + offset())

    def _start_process(self, cell: Cell) -> None:
        process = Process(self.create_id(), cell)
        cell.processes.append(process)
        calls = self._build_calls(cell)
        calls.join(process.id)
        self._spawn(process, lambda: self._run_feeder(process))
        self._spawn(process, lambda: self._run_engine(process, calls))

    def _run_feeder(self, process: Process) -> None:
        store: Any = SteppedStore(self, self._build_store(process.cell))
        calls: Any = SteppedCalls(self, self._build_calls(process.cell))
        feeder = Feeder(store, calls, clock=lambda: self.now, options=OPTIONS, create_id=self.create_id)
        while not process.is_stopping:
            more = False
            try:
                more = feeder.run_pass().has_more
            except (TimerStoreError, DatabaseFailure):
                self.pause(1.0)
            self.pause(0.0 if more else PASS_SECONDS * self.random.uniform(0.5, 1.0))
        with suppress(TimerStoreError, DatabaseFailure):
            feeder.leave()
            while process.in_flight:
                self.pause(0.1)
            feeder.end_takes()
        self._end(process)

    def _run_engine(self, process: Process, calls: MemoryCalls) -> None:
        while not process.is_stopping:
            boot_time = self.now
            if self.happens(0.1):
                self.pause(self.random.choice((0.0, 0.1, 1.0)))
            for attempt in calls.start_due(process.id, boot_time, self.create_id):
                process.in_flight += 1
                self._spawn(process, partial(self._attempt, process, calls, attempt))
            if self.random.random() < 0.1:
                calls.resolve()
            self.pause(self.random.uniform(0.01, 0.5))

    def _attempt(self, process: Process, calls: MemoryCalls, attempt: Started) -> None:
        self.pause(self.random.choice((0.0, 0.001, 0.1)) if self.has_trouble else 0.0)
        outcome = "expired"
        if self.now <= attempt.send_by:
            ok = self.random.random() < (0.6 if self.has_trouble else 0.9)
            self._deliver(process.cell, attempt, ok)
            outcome = "ok" if ok else "failed"
            self.pause(self.random.uniform(0.0, CALLBACK_SECONDS / 2))
        calls.finish(process.id, attempt, outcome, self.random.uniform(1.0, 15.0))
        process.in_flight -= 1

    # --- clients ---

    def _run_client(self, client: int) -> None:
        ids = [f"timer-{client}-{number}" for number in range(3)]
        while self.has_trouble:
            self.pause(self.random.uniform(0.1, 8.0))
            cell = self.random.choice([cell for cell in self.cells if not cell.is_lost])
            key = TimerKey.build(NAMESPACE, self.random.choice(ids), NUM_SHARDS)
            store: Any = SteppedStore(self, self._build_store(cell))
            calls: Any = SteppedCalls(self, self._build_calls(cell))
            timers = StoredTimers(store, calls, cell.database.cell_id, timedelta(seconds=5))
            known = self.promises.get(key)
            if self.now < self.settled_at.get(key, 0.0):
                continue
            try:
                if known is not None and not known.is_certain:
                    self._repeat(timers, known)
                elif self.random.random() < 0.3:
                    self._delete(timers, key)
                elif known is not None and self.random.random() < 0.4:
                    self._move(timers, known.timer)
                else:
                    self._set(timers, key)
            except (DomainError, StoreUnavailable, DatabaseFailure):
                continue

    def _choose_time(self) -> datetime:
        return round_up(self.read_true_time() + timedelta(seconds=self.random.choice((0, 1, 4, 10, 30, 60))))

    def _set(self, timers: StoredTimers, key: TimerKey) -> None:
        at = self._choose_time()
        timer = StoredTimer(
            key, Revision(self.create_id()), at, at, round_up(self.read_true_time()), "https://example.com/",
            callback_timeout_seconds=CALLBACK_SECONDS,
        )  # fmt: skip
        before = self.promises.get(key)
        self.earliest[timer.revision] = at
        try:
            timers.set(timer)
        except OutcomeUnknown:
            self.promises[key] = Promise(timer, is_certain=False)
            self.settled_at[key] = self.now + MAX_WRITE_SECONDS
            self.log(f"set {key.timer_id} {timer.revision}: unknown")
            # Nobody knows whether the earlier one is still there.
            return
        self._acknowledge(key, before, timer)

    def _repeat(self, timers: StoredTimers, promise: Promise) -> None:
        key, revision = promise.timer.key, promise.timer.revision
        is_known = True
        try:
            timers.set(promise.timer)
        except OutcomeUnknown:
            is_known = False
            self.settled_at[key] = self.now + MAX_WRITE_SECONDS
            self.log(f"set {key.timer_id} {revision} again: unknown")
        # It may have ended meanwhile, in a cell that is lost. Then it begins again, under the same idempotency key.
        self.deliveries_before_repeat.setdefault(revision, []).extend(self.deliveries.pop(revision, []))
        if is_known:
            self._acknowledge(key, None, promise.timer)

    def _delete(self, timers: StoredTimers, key: TimerKey) -> None:
        before = self.promises.get(key)
        try:
            timers.delete(key)
        except OutcomeUnknown:
            self.promises[key] = None
            return
        self._acknowledge(key, before, None)

    def _move(self, timers: StoredTimers, timer: StoredTimer) -> None:
        at, known = self._choose_time(), self.earliest[timer.revision]
        # Until it is acknowledged, and for good if nobody learns of it, it may be due at either time.
        self.earliest[timer.revision] = min(at, known)
        try:
            timers.move(timer.key, timer.revision, at)
        except OutcomeUnknown:
            self.log(f"move {timer.key.timer_id} {timer.revision} to {at}: unknown")
            return
        self.earliest[timer.revision] = at
        self.log(f"acknowledged {timer.key.timer_id}: {timer.revision} moved to {at}")

    def _acknowledge(self, key: TimerKey, before: Promise | None, timer: StoredTimer | None) -> None:
        self.log(f"acknowledged {key.timer_id}: {timer.revision if timer else 'deleted'}")
        if before is not None:
            self.void_since[before.timer.revision] = self.now
        self.promises[key] = None if timer is None else Promise(timer)

    # --- trouble ---

    def _run_trouble(self) -> None:
        while self.has_trouble:
            self.pause(self.random.uniform(0.5, 15.0))
            alive = [cell for cell in self.cells if not cell.is_lost]
            cell = self.random.choice(alive)
            what = self.random.choice(
                ("kill", "kill", "freeze", "freeze", "stop", "outage", "clock", "backup", "restore", "lose")
            )
            self.log(f"{what} {cell.number}")
            if what == "kill" and cell.processes:
                self._kill(self.random.choice(cell.processes))
            elif what == "stop":
                for process in self.random.sample(
                    cell.processes, self.random.randint(0, len(cell.processes))
                ):
                    self._stop(process)
            elif what == "freeze" and cell.processes:
                process = self.random.choice(cell.processes)
                process.frozen_until = self.now + self.random.choice((1.0, 10.0, 30.0, 60.0))
            elif what == "outage":
                self.store_outage_until = self.now + self.random.choice((1.0, 20.0, 50.0))
            elif what == "clock":
                cell.clock_offset = self.random.uniform(-0.9, 0.9)
            elif what == "backup":
                cell.backup = cell.database.back_up()
            elif what == "restore" and cell.backup is not None:
                self._restore(cell)
            elif what == "lose" and len(alive) > 2:
                self._lose(cell)

    def _kill(self, process: Process) -> None:
        cell = process.cell
        self._end(process)
        self._start_process(cell)

    def _stop(self, process: Process) -> None:
        """Let a process end its work, and replace it some time after."""
        process.is_stopping = True
        self._build_calls(process.cell).leave(process.id)

        def replace() -> None:
            while process.is_alive:
                self.pause(0.1)
            self.pause(self.random.choice((0.0, 5.0, 40.0)))
            if not process.cell.is_lost and len(process.cell.processes) < ENGINES:
                self._start_process(process.cell)

        self._spawn(None, replace)

    def _end(self, process: Process) -> None:
        process.is_alive = False
        process.cell.processes.remove(process)
        process.cell.database.nodes.discard(process.id)

    def _restore(self, cell: Cell) -> None:
        assert cell.backup is not None
        for process in list(cell.processes):
            self._end(process)
        cell.database = cell.backup.restore(f"{cell.database.cell_id}'")
        for _ in range(ENGINES):
            self._start_process(cell)

    def _lose(self, cell: Cell) -> None:
        for process in list(cell.processes):
            self._end(process)
        cell.is_lost = True

    def _make_peace(self) -> None:
        self.has_trouble = False
        self.store_outage_until = 0.0
        for cell in self.cells:
            for process in cell.processes:
                process.frozen_until = min(process.frozen_until, self.now)

    # --- promises ---

    def _deliver(self, cell: Cell, attempt: Started, ok: bool) -> None:
        timer, revision = attempt.timer, attempt.timer.revision
        self.log(f"callback {timer.key.timer_id} {revision} #{attempt.number} by cell {cell.number}: {ok}")
        local = self.read_true_time() + timedelta(seconds=cell.clock_offset)
        before = self.deliveries.setdefault(revision, [])
        self._require(local >= self.earliest[revision] - timedelta(seconds=1), "a callback is early")
        self._require(revision not in self.void_since, "an acknowledged change was ignored")
        self._require(
            all(one.number < attempt.number for one in before), "a repeat has no higher number of its attempt"
        )
        before.append(Delivery(self.now, cell.number, attempt.number, ok))

    def _check_end(self) -> None:
        self._require(not self.tables.timers, f"timers are left: {list(self.tables.timers)}")
        for promise in self.promises.values():
            if promise is not None and promise.is_certain:
                revision = promise.timer.revision
                sent = self.deliveries.get(revision, []) + self.deliveries_before_repeat.get(revision, [])
                self._require(any(one.ok for one in sent), f"a timer is lost: {promise.timer.revision}")

    def _require(self, condition: bool, what: str) -> None:
        if not condition:
            raise Broken("\n".join([*self.history[-400:], f"seed {self.seed}: {what}"]))


class SteppedStore:
    """A store whose every method is a step, and may fail."""

    def __init__(self, world: World, store: MemoryTimerStore) -> None:
        self._world = world
        self._store = store

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)

        def call(*args: Any, **options: Any) -> Any:
            return self._call(name, partial(method, **options), args)

        return call

    def _call(self, name: str, method: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        world, is_write = self._world, name in WRITES
        world.pause(world.random.choice((0.0, 0.0, 0.01, 0.3)) if world.has_trouble else 0.0)
        if world.now < world.store_outage_until or world.happens(0.01):
            raise StoreUnavailable("an outage")
        if is_write and world.happens(0.02):
            # The write comes late, if at all, and nobody learns of it.
            if world.happens(0.8):
                at = world.now + world.random.uniform(0.0, MAX_WRITE_SECONDS)
                world.late_writes.append((at, lambda: _apply_late(method, args)))
            raise OutcomeUnknown("no answer")
        result = method(*args)
        if is_write and world.happens(0.02):
            raise OutcomeUnknown("the answer was lost")
        world.pause(world.random.choice((0.0, 0.0, 0.01)) if world.has_trouble else 0.0)
        return result


WRITES = {
    "put", "delete", "move", "take", "postpone", "reschedule", "remove", "beat", "claim", "release", "remove_member",
}  # fmt: skip


def _apply_late(method: Callable[..., Any], args: tuple[Any, ...]) -> None:
    try:
        method(*args)
    except TimerStoreError:
        return


class SteppedCalls:
    """The calls of a cell, whose every transaction is a step, and may fail before or after its commit."""

    def __init__(self, world: World, calls: MemoryCalls) -> None:
        self._world = world
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._calls, name)

        def call(*args: Any) -> Any:
            world = self._world
            world.pause(world.random.choice((0.0, 0.0, 0.05)) if world.has_trouble else 0.0)
            if world.happens(0.005):
                raise DatabaseFailure
            result = method(*args)
            if world.happens(0.005):
                raise DatabaseFailure
            return result

        return call

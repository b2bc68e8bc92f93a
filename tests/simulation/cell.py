"""A cell in memory: the calls of its database, as far as they concern a timer store. Each method is a transaction."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from orchestration.feeder.ports import WaitingCall
from orchestration.lifecycle.attempts import RECORDING_GRACE
from orchestration.lifecycle.feeding import compute_start_before
from orchestration.lifecycle.timer_marks import Mark
from orchestration.states import TERMINAL, Status
from timers.stores.port import Progress, QualifiedNamespace, Revision, StoredTimer, Take, round_up

STORE = "fleet"


@dataclass(frozen=True)
class Call:
    """A row of service_calls, with what the engine needs for an attempt."""

    timer: StoredTimer
    status: Status
    take: int
    due_at: datetime
    start_before: datetime | None
    failures: int
    interruptions: int
    execution: uuid.UUID | None = None
    engine: uuid.UUID | None = None
    deadline: datetime | None = None

    def build_mark(self, next_at: datetime | None, *, failed: int = 0, interrupted: int = 0) -> Mark:
        take = Take(self.timer.key, self.timer.revision, self.due_at, self.take)
        progress = Progress(self.failures + failed, self.interruptions + interrupted)
        return Mark(STORE, take, next_at, progress)


@dataclass
class Database:
    """The relational database of a cell. A backup is a copy of it."""

    cell_id: str
    calls: dict[Revision, Call] = field(default_factory=dict)
    marks: dict[tuple[Revision, int], Mark] = field(default_factory=dict)
    # Engines that are alive, and those among them that start nothing more.
    nodes: set[uuid.UUID] = field(default_factory=set)
    leaving: set[uuid.UUID] = field(default_factory=set)

    def back_up(self) -> Database:
        return Database(self.cell_id, dict(self.calls), dict(self.marks))

    def restore(self, cell_id: str) -> Database:
        """Return the database of a restored backup, which is another cell and abandons its takes."""
        calls = {
            revision: replace(call, start_before=None) if call.status == Status.SCHEDULED else call
            for revision, call in self.calls.items()
        }
        return Database(cell_id, calls, dict(self.marks))


@dataclass(frozen=True)
class Started:
    timer: StoredTimer
    number: int
    execution: uuid.UUID
    send_by: float


class MemoryCalls:
    """The port of the feeder, and the transitions of the engine."""

    def __init__(self, database: Database, read_now: Callable[[], datetime]) -> None:
        self._db = database
        self.read_now = read_now

    def is_paused(self) -> bool:
        return False

    def knows(self, timer: StoredTimer) -> bool:
        return True

    def get_fingerprint(self, namespace: QualifiedNamespace) -> Mapping[str, str]:
        return {}

    def find_room(self, tenant_id: uuid.UUID, until: datetime) -> int:
        return 3

    def find_busy(self, timers: Sequence[StoredTimer]) -> set[Revision]:
        marked = {revision for revision, _ in self._db.marks}
        busy = {
            revision
            for revision, call in self._db.calls.items()
            if call.status == Status.RUNNING or (call.status == Status.SCHEDULED and call.start_before)
        }
        return {timer.revision for timer in timers} & (marked | busy)

    def select_unfed(self, timers: Sequence[StoredTimer]) -> list[StoredTimer]:
        return list(timers)

    def find_unstarted(self, taken: Sequence[tuple[uuid.UUID, Revision]]) -> set[Revision]:
        calls = ((revision, self._db.calls.get(revision)) for _, revision in taken)
        return {
            revision
            for revision, call in calls
            if call and call.status == Status.SCHEDULED and call.start_before
        }

    def feed(self, timers: Sequence[StoredTimer]) -> int:
        return sum(self._feed(timer, self.read_now()) for timer in timers)

    def _feed(self, timer: StoredTimer, now: datetime) -> bool:
        if (timer.revision, timer.takes) in self._db.marks:
            return False
        call = self._db.calls.get(timer.revision)
        start_before = compute_start_before(timer)
        if call is not None and call.status == Status.RUNNING:
            return False
        if call is not None and call.status in TERMINAL:
            self._mark(Mark(STORE, timer.take, None, timer.progress))
            return False
        if call is not None and (call.start_before or call.take >= timer.takes):
            return False
        if now > start_before:
            self._mark(Mark(STORE, timer.take, timer.execute_at, timer.progress))
            return False
        if call is None and not self._close_others(timer):
            return False
        self._db.calls[timer.revision] = Call(
            timer, Status.SCHEDULED, timer.takes, timer.execute_at, start_before,
            timer.progress.attempts, timer.progress.interruptions,
        )  # fmt: skip
        return True

    def _close_others(self, timer: StoredTimer) -> bool:
        """Cancel waiting calls of other revisions. Return False if one of them is Running."""
        is_free = True
        for revision, call in self._db.calls.items():
            if call.timer.key == timer.key and call.status not in TERMINAL:
                if call.status == Status.RUNNING:
                    is_free = False
                else:
                    self._db.calls[revision] = replace(call, status=Status.CANCELED)
        return is_free

    def _mark(self, mark: Mark) -> None:
        key = mark.take.revision, mark.take.number
        assert key not in self._db.marks, "a take ends once"
        self._db.marks[key] = mark

    def release_ready(self, limit: int) -> int:
        if self._db.nodes - self._db.leaving:
            return 0
        ready = [
            (revision, call)
            for revision, call in self._db.calls.items()
            if call.status == Status.SCHEDULED and call.start_before
        ]
        for revision, call in ready[:limit]:
            self._release(revision, call)
        return len(ready[:limit])

    def _release(self, revision: Revision, call: Call) -> None:
        self._db.calls[revision] = replace(call, start_before=None)
        self._mark(call.build_mark(call.due_at))

    def list_marks(self, limit: int) -> list[Mark]:
        return list(self._db.marks.values())[:limit]

    def delete_marks(self, marks: Sequence[Mark]) -> None:
        for mark in marks:
            self._db.marks.pop((mark.take.revision, mark.take.number), None)

    def list_waiting(self, due_before: datetime, limit: int) -> list[WaitingCall]:
        found = [
            WaitingCall(call.timer.key, revision, call.take)
            for revision, call in self._db.calls.items()
            if call.status == Status.SCHEDULED and call.start_before is None and call.due_at < due_before
        ]
        return found[:limit]

    def follow_timer(self, waiting: WaitingCall, due_at: datetime) -> None:
        call = self._db.calls.get(waiting.revision)
        if call and call.status == Status.SCHEDULED and not call.start_before and call.take <= waiting.take:
            self._db.calls[waiting.revision] = replace(call, due_at=due_at)

    def close_waiting(self, calls: Sequence[WaitingCall]) -> None:
        for waiting in calls:
            call = self._db.calls.get(waiting.revision)
            if (
                call
                and call.status == Status.SCHEDULED
                and not call.start_before
                and call.take <= waiting.take
            ):
                self._db.calls[waiting.revision] = replace(call, status=Status.CANCELED)

    # --- the engine ---

    def join(self, engine: uuid.UUID) -> None:
        self._db.nodes.add(engine)

    def leave(self, engine: uuid.UUID) -> None:
        """Let the engine start nothing more. It may record the outcomes of its attempts."""
        self._db.leaving.add(engine)

    def start_due(
        self, engine: uuid.UUID, boot_time: float, create_id: Callable[[], uuid.UUID]
    ) -> list[Started]:
        now, started = self.read_now(), []
        for revision, call in self._db.calls.items():
            if call.status != Status.SCHEDULED or call.start_before is None or call.due_at > now:
                continue
            if now > call.start_before:
                self._release(revision, call)
                continue
            timeout = timedelta(seconds=call.timer.callback_timeout_seconds)
            running = replace(
                call, status=Status.RUNNING, execution=create_id(), engine=engine,
                deadline=now + timeout + RECORDING_GRACE,
            )  # fmt: skip
            self._db.calls[revision] = running
            send_by = boot_time + (call.start_before - now).total_seconds()
            assert running.execution is not None
            started.append(Started(call.timer, call.take, running.execution, send_by))
        return started

    def finish(self, engine: uuid.UUID, attempt: Started, outcome: str, delay: float) -> None:
        """Record an outcome: `ok`, `failed` or `expired`. An engine that was declared dead records nothing."""
        call = self._db.calls.get(attempt.timer.revision)
        if engine not in self._db.nodes or call is None:
            return
        if call.status != Status.RUNNING or call.execution != attempt.execution:
            return
        now = self.read_now()
        if outcome == "ok":
            self._db.calls[attempt.timer.revision] = replace(call, status=Status.SUCCEEDED)
            self._mark(call.build_mark(None))
        elif outcome == "failed":
            self._wait(call, round_up(now + timedelta(seconds=delay)), failed=1)
        else:
            self._wait(call, call.due_at)

    def resolve(self) -> None:
        """Resolve the attempts of dead engines, and overdue ones."""
        now = self.read_now()
        for call in list(self._db.calls.values()):
            is_lost = call.engine not in self._db.nodes or (call.deadline and call.deadline < now)
            if call.status == Status.RUNNING and is_lost:
                self._wait(call, round_up(now), interrupted=1)

    def _wait(self, call: Call, due_at: datetime, *, failed: int = 0, interrupted: int = 0) -> None:
        self._mark(call.build_mark(due_at, failed=failed, interrupted=interrupted))
        self._db.calls[call.timer.revision] = replace(
            call, status=Status.SCHEDULED, start_before=None, due_at=due_at, engine=None,
            failures=call.failures + failed, interruptions=call.interruptions + interrupted,
        )  # fmt: skip

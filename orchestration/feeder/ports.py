"""The port to the calls of this cell, as the feeder of one timer store needs it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple, Protocol

from orchestration.lifecycle.timer_marks import Mark
from timers.stores.port import QualifiedNamespace, Revision, StoredTimer, TimerKey


class WaitingCall(NamedTuple):
    """A call that waits for a take of this revision of a timer."""

    key: TimerKey
    revision: Revision
    take: int


class CellCalls(Protocol):
    """The calls of this cell whose timers are in one store. Each method is a transaction of its own.

    `now` is the time of this cell's database.
    """

    def read_now(self) -> datetime: ...

    def is_paused(self) -> bool:
        """Return whether dispatch is paused: then nothing may be taken."""

    def knows(self, timer: StoredTimer) -> bool:
        """Return whether this cell can make the attempt: it knows the format, the tenant and the namespace."""

    def get_fingerprint(self, namespace: QualifiedNamespace) -> Mapping[str, str]:
        """Return a digest for each group of settings that decide how this cell sends the timers of a namespace."""

    def find_room(self, tenant_id: uuid.UUID, until: datetime) -> int:
        """Return how many more timers of a tenant can start until then."""

    def find_busy(self, timers: Sequence[StoredTimer]) -> set[Revision]:
        """Return those of the timers that this cell must not take: their calls are ready or Running, or their end is not
        applied yet."""

    def select_unfed(self, timers: Sequence[StoredTimer]) -> list[StoredTimer]:
        """Return those of the timers, which this cell has taken, that may have to be fed. This only saves work."""

    def find_unstarted(self, taken: Sequence[tuple[uuid.UUID, Revision]]) -> set[Revision]:
        """Return those of the timers, each with its tenant, whose calls are ready and have not started."""

    def feed(self, timers: Sequence[StoredTimer]) -> int:
        """Make the calls of taken timers ready to start (orchestration.lifecycle.feeding). Return how many were not."""

    def release_ready(self, limit: int) -> int:
        """Release takes of calls that are ready to start, unless an engine of this cell is left to start them.

        Return how many there were, at most `limit`.
        """

    def list_marks(self, limit: int) -> list[Mark]:
        """Return the marks that have waited longest."""

    def delete_marks(self, marks: Sequence[Mark]) -> None: ...

    def list_waiting(self, due_before: datetime, limit: int) -> list[WaitingCall]:
        """Return calls that have waited for a take since their timers were due."""

    def follow_timer(self, call: WaitingCall, due_at: datetime) -> None:
        """Note when the timer of a call is due again, if the call still waits for the take after this one."""

    def close_waiting(self, calls: Sequence[WaitingCall]) -> None:
        """Cancel calls that still wait for the take after this one: their timers are gone, or were changed."""

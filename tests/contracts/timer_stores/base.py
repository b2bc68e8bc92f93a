"""The part of a timer store that the contract suite uses."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

from eventservice.kernel.ids import new_id
from timers.stores.factory import build_store
from timers.stores.port import (
    NextAttempt,
    Progress,
    QualifiedNamespace,
    Revision,
    StoredTimer,
    Take,
    TimerKey,
    TimerStore,
)
from timers.stores.store_spec import StoreSpec

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
NUM_SHARDS = 16
TENANT, INTRUDER = (uuid.UUID(f"01900000-0000-7000-8000-00000000000{n}") for n in (1, 2))
ALERTS = QualifiedNamespace(TENANT, "alerts")
CELL, OTHER_CELL = "cell-a", "cell-b"


class StoreUnderTest:
    """A real server with a table of this test run's own, empty at the start of a test."""

    # None for a store that other processes cannot use.
    spec: StoreSpec | None = None
    # A payload of this size is too large.
    too_many_bytes: int

    def __init__(self, spec: StoreSpec) -> None:
        self.spec = spec
        self._built: list[TimerStore] = []

    def build(self, cell: str = CELL) -> TimerStore:
        assert self.spec is not None
        store = build_store(self.spec, cell)
        self._built.append(store)
        return store

    def end_test(self) -> None:
        """Close the stores that a test has built, and delete what is in them."""
        self.close_built()
        self.clear()

    def close_built(self) -> None:
        for store in self._built:
            store.close()
        self._built.clear()

    def clear(self) -> None:
        """Delete all rows."""
        raise NotImplementedError

    def close(self) -> None:
        """Delete the table."""
        raise NotImplementedError


def build_key(timer_id: str = "timer-1", namespace: QualifiedNamespace = ALERTS) -> TimerKey:
    return TimerKey.build(namespace, timer_id, NUM_SHARDS)


def build_timer(
    timer_id: str = "timer-1",
    execute_at: datetime = NOW,
    namespace: QualifiedNamespace = ALERTS,
    **members: Any,
) -> StoredTimer:
    return StoredTimer(
        key=members.pop("key", None) or build_key(timer_id, namespace),
        revision=Revision(new_id()),
        execute_at=execute_at,
        requested_at=members.pop("requested_at", execute_at),
        created_at=NOW,
        callback_url="https://example.com/timers",
        **members,
    )


def reschedule_one(
    store: TimerStore, take: Take, execute_at: datetime, progress: Progress | None = None
) -> bool:
    return store.reschedule([NextAttempt(take, execute_at, progress)]) == 1


def build_timers_of_shard(shard: int, count: int) -> list[StoredTimer]:
    """Return timers in one shard, all due now."""
    found: list[StoredTimer] = []
    number = 0
    while len(found) < count:
        timer = build_timer(f"timer-{number}")
        if timer.key.shard == shard:
            found.append(timer)
        number += 1
    return found

"""Processes that use one timer store at the same moment. Each is a cell or an engine of one, with a connection of its own."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from tests.contracts.timer_stores.base import NOW
from timers.stores.factory import build_store
from timers.stores.port import TimerStore
from timers.stores.store_spec import StoreSpec

PROCESSES = 20
# Of which several processes each belong to one cell.
CELLS = 3
CLAIMS, TAKES = 5, 4
TIMEOUT_SECONDS = 120.0
TAKE = timedelta(seconds=30)

Barrier = Any
Step = Callable[[TimerStore, int, Barrier], list[Any]]


def race(spec: StoreSpec, step: Step, shard: int) -> list[list[Any]]:
    """Run a step in twenty processes, and return what each of them has returned."""
    # Not forked from this process, whose threads and connections a child must not inherit.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, f"timers.stores.{spec.kind}.store"])
    barrier, results = context.Barrier(PROCESSES), context.Queue()
    processes = [
        context.Process(target=_run, args=(spec, number, step, shard, barrier, results))
        for number in range(PROCESSES)
    ]
    for process in processes:
        process.start()
    try:
        found = [results.get(timeout=TIMEOUT_SECONDS) for _ in processes]
    finally:
        for process in processes:
            process.join(TIMEOUT_SECONDS)
            process.kill()
    errors = [result for result in found if isinstance(result, Exception)]
    if errors:
        # The error of one process breaks the barrier for the others.
        raise min(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError))
    return found


def _run(spec: StoreSpec, number: int, step: Step, shard: int, barrier: Barrier, results: Any) -> None:
    try:
        store = build_store(spec, f"cell-{number % CELLS}")
        store.read_clock()
        barrier.wait(TIMEOUT_SECONDS)
        results.put(step(store, shard, barrier))
        store.close()
    except Exception as error:  # noqa: BLE001 - it is raised again in the test
        barrier.abort()
        results.put(error)


def claim_repeatedly(store: TimerStore, shard: int, barrier: Barrier) -> list[int]:
    """Return the versions that were won."""
    won = []
    for _ in range(CLAIMS):
        (seen,) = store.shards([shard])
        if claim := store.claim(seen, "owner", {}):
            won.append(claim.version)
    return won


def take_repeatedly(store: TimerStore, shard: int, barrier: Barrier) -> list[tuple[str, int]]:
    """Return the takes that were won: timers and numbers. Between the rounds, all takes end."""
    won = []
    for now in list_rounds():
        page = store.due(shard, now, now, None, 1000)
        barrier.wait(TIMEOUT_SECONDS)
        won += [(timer.key.timer_id, timer.takes) for timer in store.take(page.timers, now, now + TAKE)]
        barrier.wait(TIMEOUT_SECONDS)
    return won


def move_repeatedly(store: TimerStore, shard: int, barrier: Barrier) -> list[tuple[str, int]]:
    """Return the moves that were won: timers and numbers. All move what they have read to another time."""
    won = []
    for now in list_rounds():
        page = store.due(shard, now, now, None, 1000)
        barrier.wait(TIMEOUT_SECONDS)
        moved = [store.move(timer, now, timer.execute_at + timedelta(seconds=1)) for timer in page.timers]
        won += [(timer.key.timer_id, timer.takes) for timer in moved if timer is not None]
        barrier.wait(TIMEOUT_SECONDS)
    return won


def list_rounds() -> list[datetime]:
    return [NOW + timedelta(minutes=number) for number in range(TAKES)]

"""Two dispatchers are killed again and again while events are appended: no event is lost or out of order.

The tests judge by the file to which they publish, or by what the broker has.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from uuid import UUID

import pytest
from django.conf import settings

from eventservice.kernel.ids import new_id
from outbox.models import BrokerQueueEntry, OutboxEvent
from tests.contracts.brokers import BROKERS
from tests.contracts.test_publishers import list_first_sequences
from tests.outbox.support import build_event, store_events
from tests.process_harness import build_database_environment, wait_until_none_left
from tests.tcp_proxy import Trouble

pytestmark = pytest.mark.django_db(transaction=True)

FAULTS = (
    "",
    "dispatch.read=kill@{}",
    "dispatch.published=kill@{}",
    "dispatch.marked=kill@{}",
    # Passed only with the queue of a broker.
    "broker.read=kill@{}",
    "broker.accepted=kill@{}",
)
AGGREGATES = 40


@pytest.mark.parametrize(
    "seconds", [pytest.param(5, id="short"), pytest.param(600, id="long", marks=pytest.mark.chaos)]
)
@pytest.mark.parametrize("way", ["direct", "queue"])
def test_no_event_is_lost_or_out_of_order(seconds: int, way: str, tmp_path: Path) -> None:
    seed = random.randrange(10**6)
    pair = Pair(tmp_path, random.Random(seed), way)
    aggregates = [new_id() for _ in range(AGGREGATES)]
    try:
        written = _append_for(seconds, aggregates, pair)
        pair.stop_killing()
        _wait_until_published()
    finally:
        pair.kill_all()

    expected = {aggregate: list(range(1, count + 1)) for aggregate, count in written.items()}
    assert _list_first_published(pair.record) == expected, f"seed {seed}"
    assert pair.kills > seconds / 3


@pytest.mark.parametrize(
    ("seconds", "pause"),
    [pytest.param(2, 0.02, id="short"), pytest.param(600, 0.4, id="long", marks=pytest.mark.chaos)],
)
@pytest.mark.parametrize("kind", BROKERS)
def test_no_event_is_lost_or_out_of_order_through_an_outage_of_the_broker(
    kind: str, seconds: int, pause: float, tmp_path: Path
) -> None:
    """The broker is unavailable for that long, while dispatchers are killed before, meanwhile and afterwards."""
    seed = random.randrange(10**6)
    broker = BROKERS[kind]()
    pair = Pair(tmp_path, random.Random(seed), broker.build_url("timeout=2"))
    aggregates = [new_id() for _ in range(AGGREGATES)]
    around = max(2, seconds // 20)
    try:
        written = _append_for(around, aggregates, pair, pause=pause)
        with broker.proxy.make_trouble(Trouble.REFUSE, 0):
            _append_for(seconds, aggregates, pair, written, pause)
        _append_for(around, aggregates, pair, written, pause)
        pair.stop_killing()
        _wait_until_published()
        expected = {str(aggregate): list(range(1, count + 1)) for aggregate, count in written.items()}
        assert list_first_sequences(broker.list_accepted()) == expected, f"seed {seed}"
        assert pair.kills > seconds / 3
    finally:
        pair.kill_all()
        broker.close()


def _append_for(
    seconds: float,
    aggregates: list[UUID],
    pair: Pair,
    written: Counter[UUID] | None = None,
    pause: float = 0.005,
) -> Counter[UUID]:
    """Append events, and return how many each aggregate has, with those that were written before."""
    written = Counter() if written is None else written
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        batch = []
        for aggregate in pair.random.choices(aggregates, k=8):
            written[aggregate] += 1
            batch.append(build_event(aggregate, written[aggregate]))
        store_events(*batch)
        pair.tick()
        time.sleep(pause)
    return written


def _wait_until_published() -> None:
    unpublished = OutboxEvent.across_tenants.filter(published_at=None)
    wait_until_none_left(lambda: unpublished.count() + BrokerQueueEntry.objects.count(), "unpublished events")


def _list_first_published(record: Path) -> dict[UUID, list[int]]:
    """Return the event numbers of each aggregate in the order in which they were first published."""
    seen: defaultdict[UUID, list[int]] = defaultdict(list)
    ids = set()
    for line in record.read_text().splitlines():
        aggregate, sequence, event_id = line.split()
        if event_id not in ids:
            ids.add(event_id)
            seen[UUID(aggregate)].append(int(sequence))
    return seen


class Pair:
    """Two dispatcher processes. One that has died is restarted, and one that is alive is killed at random times."""

    def __init__(self, folder: Path, random: random.Random, way: str) -> None:
        self.random = random
        self.way = way
        self.record = folder / "record"
        self.kills = 0
        self._live_file = folder / "live"
        self._running: dict[UUID, subprocess.Popen[bytes]] = {}
        self._has_faults = True
        self._start_missing()
        self._next_kill = time.monotonic() + 1.5

    def tick(self) -> None:
        """Count and replace those that have died, and kill one if it is time to."""
        dead = [owner for owner, process in self._running.items() if process.poll() is not None]
        for owner in dead:
            assert self._running.pop(owner).returncode == -signal.SIGKILL
            self.kills += 1
        self._start_missing()
        if time.monotonic() > self._next_kill:
            self.random.choice([*self._running.values()]).kill()
            self._next_kill = time.monotonic() + self.random.uniform(0.3, 1.2)

    def stop_killing(self) -> None:
        self.tick()
        self._has_faults = False
        self.kill_all()
        self._start_missing()

    def kill_all(self) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()
        self._running.clear()

    def _start_missing(self) -> None:
        if len(self._running) == 2:
            return
        while len(self._running) < 2:
            owner = new_id()
            self._running[owner] = self._start(owner)
        new_file = self._live_file.with_suffix(".new")
        new_file.write_text("\n".join(str(owner) for owner in self._running))
        new_file.replace(self._live_file)

    def _start(self, owner: UUID) -> subprocess.Popen[bytes]:
        fault = self.random.choice(FAULTS).format(self.random.randint(1, 40)) if self._has_faults else ""
        self._live_file.touch()
        return subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.outbox.dispatcher_process",
                str(owner),
                self._live_file,
                self.record,
                self.way,
            ],
            cwd=settings.BASE_DIR,
            env={**os.environ, **build_database_environment(), "FAULTS": fault},
        )

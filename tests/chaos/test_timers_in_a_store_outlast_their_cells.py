"""Two cells around a timer store: engines are killed and frozen, the store has outages, one cell gets an earlier state of its
database back, and the other is lost with its database. The target judges, by the ids that users were given.
"""

from __future__ import annotations

import random
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from urllib.parse import urlsplit

import pytest
from django.db import connection

from eventservice.db.now import db_now
from eventservice.kernel.ids import new_id
from tests.chaos.cells import Cell, Users, UserTimer
from tests.contracts.timer_stores import STORES, StoreUnderTest
from tests.process_harness import ProcessHarness, ReceivedRequest, report, wait_until_none_left
from tests.tcp_proxy import TcpProxy, Trouble

USERS = 16
# A take ends after the look-ahead, the time-out of the callback and 45 s.
MAX_STANDSTILL_SECONDS = 120.0
OUTAGES = (Trouble.REFUSE, Trouble.SWALLOW, Trouble.RESET)

pytestmark = pytest.mark.skipif(connection.vendor != "sqlite", reason="each cell has a database in a file")


class Scenario:
    """The trouble of cells and store while users set timers."""

    def __init__(
        self,
        cells: list[Cell],
        proxy: TcpProxy,
        rng: random.Random,
        seconds: float,
        disturbances: int,
        outages: int,
    ) -> None:
        self.happened: Counter[str] = Counter()
        self._cells, self._proxy, self._rng = cells, proxy, rng
        pauses = [rng.uniform(0.0, seconds) for _ in range(disturbances)]
        self._plan: list[tuple[float, Callable[[], None]]] = [(at, self._disturb) for at in pauses]
        self._plan += [(seconds * (number + 0.5) / outages, self._begin_outage) for number in range(outages)]

    def also(self, at: float, act: Callable[[], None]) -> None:
        self._plan.append((at, act))

    def run(self) -> None:
        started = time.monotonic()
        for at, act in sorted(self._plan, key=lambda step: step[0]):
            time.sleep(max(0.0, started + at - time.monotonic()))
            act()

    def _disturb(self) -> None:
        cell = self._rng.choice([cell for cell in self._cells if not cell.is_lost])
        number = self._rng.randrange(len(cell.engines))
        engine = cell.engines[number]
        if self._rng.random() < 0.6:
            self.happened["kill"] += 1
            cell.kill_engine(number)
            return
        self.happened["freeze"] += 1
        engine.freeze()
        time.sleep(self._rng.choice((0.5, 2.0, 8.0)))
        if engine.is_running:
            engine.thaw()

    def _begin_outage(self) -> None:
        trouble = OUTAGES[self.happened["outage"] % len(OUTAGES)]
        self.happened["outage"] += 1
        self._proxy.set_trouble(trouble)
        time.sleep(self._rng.uniform(4.0, 12.0))
        self._proxy.set_trouble(Trouble.NONE)


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Iterator[StoreUnderTest]:
    store = STORES[request.param]()
    try:
        store.build().migrate()
        yield store
    finally:
        store.close_built()
        store.close()


@pytest.fixture
def proxy(store: StoreUnderTest) -> Iterator[TcpProxy]:
    assert store.spec is not None
    found = re.search(r"(127\.0\.0\.1|localhost)(?::|%3A)(\d+)", store.spec.url)
    assert found is not None
    proxy = TcpProxy("127.0.0.1", int(found[2]))
    yield proxy
    proxy.close()


def build_proxied_url(store: StoreUnderTest, proxy: TcpProxy) -> str:
    assert store.spec is not None
    return re.sub(r"((?:127\.0\.0\.1|localhost)(?::|%3A))\d+", rf"\g<1>{proxy.port}", store.spec.url)


KINDS = ["postgres", "mongodb", "dynamodb", "cassandra"]
SHORT = [pytest.param("postgres", 60, 15.0, 4, 1, False, id="short")]
WHOLE = [pytest.param(kind, 5000, 240.0, 60, 3, True, id=kind, marks=pytest.mark.chaos) for kind in KINDS]


@pytest.mark.parametrize(
    ("store", "timers", "seconds", "disturbances", "outages", "has_loss"),
    [*SHORT, *WHOLE],
    indirect=["store"],
)
def test_every_timer_fires_as_it_was_acknowledged(
    store: StoreUnderTest,
    timers: int,
    seconds: float,
    disturbances: int,
    outages: int,
    has_loss: bool,
    proxy: TcpProxy,
    harness: ProcessHarness,
    rng: random.Random,
) -> None:
    target, tenant_id = harness.start_target(), new_id()
    url = build_proxied_url(store, proxy)
    cells = [Cell(harness, name, url, tenant_id) for name in ("a", "b")]
    scenario = Scenario(cells, proxy, rng, seconds, disturbances, outages)
    if has_loss:
        lost, restored = cells
        scenario.also(seconds * 0.2, restored.back_up)
        scenario.also(seconds * 0.45, restored.restore)
        scenario.also(seconds * 0.7, lost.lose)
    users = Users(cells, tenant_id, target.url, rng)
    with ThreadPoolExecutor(1) as pool:
        happening = pool.submit(scenario.run)
        users.run(timers, seconds, USERS)
        happening.result()
    witness = store.build()
    wait_until_none_left(
        lambda: sum(shard.pending for shard in witness.count_timers(range(16), db_now())),
        "timers in the store",
        MAX_STANDSTILL_SECONDS,
    )

    received: dict[str, list[ReceivedRequest]] = defaultdict(list)
    for request in target.list_requests():
        received[request.path].append(request)
    repeats = sum(assert_fired_as_acknowledged(timer, received[timer.path]) for timer in users.timers)
    report(
        f"{store.spec and urlsplit(store.spec.url).scheme}: {len(users.timers):,} timers, {dict(scenario.happened)}; "
        f"{sum(map(len, received.values())):,} callbacks, {repeats:,} of them repeats; answers: {dict(users.answers)}"
    )


def assert_fired_as_acknowledged(timer: UserTimer, received: list[ReceivedRequest]) -> int:
    """Check everything that reached the target about a timer. Return the number of repeats."""
    by_key: dict[str | None, list[ReceivedRequest]] = defaultdict(list)
    for request in received:
        by_key[request.idempotency_key].append(request)
    for key, requests in by_key.items():
        attempts = [request.attempt for request in requests]
        assert attempts == sorted(set(attempts)), f"{timer.timer_id} {key}: attempts {attempts}"
    acknowledged = [setting for setting in timer.settings if setting.acknowledged_at]
    for setting, following in zip_longest(acknowledged, acknowledged[1:]):
        if setting.due is None:
            continue
        for request in by_key.get(setting.revision, []):
            assert request.time >= setting.due.timestamp() - 0.001, f"{timer.timer_id} is early"
            is_void = following is not None and request.time > (following.acknowledged_at or 0.0)
            assert not is_void, f"{timer.timer_id}: a change was ignored: {timer.settings}"
    unknown = by_key.keys() - {setting.revision for setting in acknowledged}
    assert len(unknown) <= len(timer.settings) - len(acknowledged), f"{timer.timer_id}: {unknown}"
    last = timer.settings[-1] if timer.settings else None
    if last is not None and last.acknowledged_at and last.due is not None:
        needed = 2 if "callback-retry" in timer.path else 1
        assert len(by_key[last.revision]) >= needed, f"{timer.timer_id} is lost: {timer.settings} {received}"
    return len(received) - len(by_key)

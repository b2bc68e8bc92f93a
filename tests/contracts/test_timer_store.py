"""The contract of `TimerStore`, for every kind of store and every server."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import chain

import pytest

from eventservice.kernel.ids import new_id
from tests.contracts.timer_stores import STORES, StoreUnderTest, list_parameters
from tests.contracts.timer_stores.base import (
    ALERTS,
    CELL,
    INTRUDER,
    NOW,
    NUM_SHARDS,
    OTHER_CELL,
    build_key,
    build_timer,
    build_timers_of_shard,
    reschedule_one,
)
from tests.contracts.timer_stores.races import (
    CLAIMS,
    PROCESSES,
    TAKES,
    claim_repeatedly,
    move_repeatedly,
    race,
    take_repeatedly,
)
from timers.stores.port import (
    EPOCH,
    Claim,
    Member,
    NextAttempt,
    Position,
    Progress,
    QualifiedNamespace,
    ShardOwnership,
    StoredTimer,
    TimerConflict,
    TimerStore,
    TimerTooLarge,
)

SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
SHARD = build_key().shard
THREADS = 6


@pytest.fixture(scope="module", params=list_parameters(STORES))
def server(request: pytest.FixtureRequest) -> Iterator[StoreUnderTest]:
    server = STORES[request.param]()
    server.build().migrate()
    server.end_test()
    yield server
    server.close()


@pytest.fixture
def stores(server: StoreUnderTest) -> Iterator[StoreUnderTest]:
    yield server
    server.end_test()


@pytest.fixture
def store(stores: StoreUnderTest) -> TimerStore:
    return stores.build()


@pytest.fixture
def rival(stores: StoreUnderTest) -> TimerStore:
    """Return the same store as another cell sees it."""
    return stores.build(OTHER_CELL)


def put_new(store: TimerStore, *timers: StoredTimer) -> None:
    for timer in timers:
        store.put(timer, None, NOW)


def get(store: TimerStore, timer: StoredTimer) -> StoredTimer:
    stored = store.get(timer.key)
    assert stored is not None
    return stored


def take_one(store: TimerStore, timer: StoredTimer, now: datetime = NOW) -> StoredTimer:
    (taken,) = store.take([timer], now, now + MINUTE)
    return taken


def list_due(store: TimerStore, now: datetime = NOW, until: datetime | None = None) -> list[str]:
    page = store.due(SHARD, now, until or now, None, 1000)
    return [timer.key.timer_id for timer in page.timers]


# --- rows ---------------------------------------------------------------------------------------------------------


def test_a_timer_is_read_as_it_was_put(store: TimerStore) -> None:
    timer = build_timer(
        "Erinnerung/☕ #1",
        NOW + timedelta(days=40_000, milliseconds=123),
        requested_at=NOW + timedelta(milliseconds=1),
        payload={"text": "Zoë ☕ \\ \" ' \n", "list": [1, 2.5, True, None, {}], "n": 2**53},
        retry_policy={"max_attempts": 3, "initial_interval": 0.5, "max_attempts_duration": None},
        callback_timeout_seconds=0.25,
        progress=Progress(2, 1, NOW + timedelta(milliseconds=7), 9),
        takes=4,
        taken_until=NOW + MINUTE,
        taken_by=CELL,
    )
    put_new(store, timer)
    assert store.get(timer.key) == timer


@pytest.mark.parametrize("payload", [None, 0, "", "text", [], False, {"$set": 1, "a.b": {"$x": []}, "": 0}])
def test_any_json_value_can_be_a_payload(store: TimerStore, payload: object) -> None:
    timer = build_timer(payload=payload)
    put_new(store, timer)
    assert get(store, timer).payload == payload


def test_a_timer_that_does_not_exist_is_not_found(store: TimerStore) -> None:
    assert store.get(build_key("nothing")) is None


def test_equal_ids_of_two_tenants_and_two_namespaces_are_different_timers(store: TimerStore) -> None:
    namespaces = [ALERTS, QualifiedNamespace(INTRUDER, ALERTS.name), replace(ALERTS, name="alerts-2")]
    timers = [build_timer("same", NOW, namespace) for namespace in namespaces]
    put_new(store, *timers)
    assert [store.get(timer.key) for timer in timers] == timers
    assert store.delete(timers[1], NOW)
    assert [store.get(timer.key) for timer in timers] == [timers[0], None, timers[2]]


@pytest.mark.parametrize(
    "timer_id", ["Timer", "TIMER", "timer ", " timer", "timér", "timer\u0301", "ti%er", "timer:", "/timer"]
)
def test_ids_are_compared_by_their_bytes(store: TimerStore, timer_id: str) -> None:
    plain = build_timer("timer")
    # In one shard, where the row of one could be found in place of the other's.
    similar = build_timer(key=replace(build_key(timer_id), shard=plain.key.shard))
    put_new(store, plain)
    assert store.get(similar.key) is None
    put_new(store, similar)
    assert (store.get(plain.key), store.get(similar.key)) == (plain, similar)


def test_an_id_of_the_maximum_length_is_stored(store: TimerStore) -> None:
    timer = build_timer("☕" * 200, NOW, replace(ALERTS, name="n" * 218))
    put_new(store, timer)
    assert store.get(timer.key) == timer


def test_a_timer_that_is_too_large_is_refused_and_others_are_stored(stores: StoreUnderTest) -> None:
    store = stores.build()
    with pytest.raises(TimerTooLarge, match="payload"):
        store.put(build_timer(payload="x" * stores.too_many_bytes), None, NOW)
    assert store.get(build_key()) is None
    put_new(store, build_timer(payload="x" * 100_000))


# --- put ----------------------------------------------------------------------------------------------------------


def test_a_new_timer_does_not_replace_another(store: TimerStore) -> None:
    first, second = build_timer(), build_timer(execute_at=NOW + HOUR)
    put_new(store, first)
    with pytest.raises(TimerConflict) as raised:
        store.put(second, None, NOW)
    assert raised.value.stored == first
    assert store.get(first.key) == first


def test_a_repeat_of_a_put_changes_nothing(store: TimerStore) -> None:
    timer = build_timer()
    put_new(store, timer)
    taken = take_one(store, timer)
    store.put(timer, None, NOW)
    assert store.get(timer.key) == taken


def test_a_timer_replaces_the_one_that_was_read(store: TimerStore) -> None:
    first, second = build_timer(payload=1), build_timer(execute_at=NOW - HOUR, payload=2)
    put_new(store, first)
    store.put(second, first, NOW)
    assert store.get(first.key) == second
    assert list_due(store, until=NOW + HOUR) == [first.key.timer_id]
    # Its outcome may have been unknown.
    store.put(second, first, NOW)
    assert store.get(first.key) == second


def test_a_put_over_a_later_revision_changes_nothing(store: TimerStore) -> None:
    """Else a slow write would overwrite a later one that was acknowledged."""
    first, second, third = (build_timer(payload=n) for n in range(3))
    put_new(store, first)
    store.put(second, first, NOW)
    with pytest.raises(TimerConflict) as raised:
        store.put(third, first, NOW)
    assert raised.value.stored == second
    assert store.get(first.key) == second


def test_a_put_over_a_timer_that_is_gone_does_not_bring_it_back(store: TimerStore) -> None:
    first, second = build_timer(), build_timer()
    put_new(store, first)
    assert store.remove([take_one(store, first).take]) == 1
    with pytest.raises(TimerConflict) as raised:
        store.put(second, first, NOW)
    assert raised.value.stored is None
    assert store.get(first.key) is None


def test_a_timer_that_was_taken_meanwhile_is_not_replaced(store: TimerStore) -> None:
    first, second = build_timer(), build_timer()
    put_new(store, first)
    taken = take_one(store, first)
    for read in (first, taken):
        with pytest.raises(TimerConflict) as raised:
            store.put(second, read, NOW)
        assert raised.value.stored == taken
        assert not store.delete(read, NOW)
    assert store.get(first.key) == taken


def test_a_timer_can_be_replaced_when_its_take_has_ended_without_an_outcome(
    store: TimerStore, rival: TimerStore
) -> None:
    first, second = build_timer(), build_timer()
    put_new(store, first)
    taken = take_one(rival, first)
    later = taken.taken_until
    store.put(second, taken, later)
    assert store.get(first.key) == second
    # The cell that had taken it comes back.
    assert not reschedule_one(rival, taken.take, later + HOUR)
    assert rival.remove([taken.take]) == 0
    assert store.get(first.key) == second


def test_a_timer_is_deleted_as_it_was_read_only(store: TimerStore) -> None:
    first, second = build_timer(), build_timer()
    put_new(store, first)
    store.put(second, first, NOW)
    assert not store.delete(first, NOW)
    assert store.delete(second, NOW)
    assert store.get(first.key) is None
    assert not store.delete(second, NOW)
    put_new(store, first)


# --- move ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("distance", [HOUR, -HOUR, timedelta()], ids=["later", "earlier", "same time"])
def test_a_moved_timer_is_the_same_one_at_another_time(
    store: TimerStore, rival: TimerStore, distance: timedelta
) -> None:
    timer = build_timer(
        requested_at=NOW - 2 * HOUR, payload={"a": [None]}, progress=Progress(2, 1, NOW, 7), takes=3
    )
    put_new(store, timer)
    moved = rival.move(timer, NOW, NOW + distance)
    assert moved == replace(timer, execute_at=NOW + distance, takes=4)
    assert store.get(timer.key) == moved
    assert list_due(store, NOW + distance - timedelta(milliseconds=1)) == []
    assert list_due(store, NOW + distance) == [timer.key.timer_id]
    assert take_one(rival, moved).takes == 5


def test_moved_timers_are_due_in_the_order_of_their_new_times(store: TimerStore) -> None:
    timers = build_timers_of_shard(SHARD, 4)
    put_new(store, *timers)
    first, second, third, fourth = timers
    for timer, distance in ((third, -HOUR), (first, HOUR), (second, timedelta(microseconds=1))):
        assert store.move(timer, NOW, NOW + distance)
    found = store.due(SHARD, NOW, NOW + HOUR, None, 10).timers
    assert [timer.key for timer in found] == [timer.key for timer in (third, fourth, second, first)]
    # No time is rounded down.
    assert found[2].execute_at == NOW + timedelta(milliseconds=1)


def test_a_timer_that_was_changed_since_it_was_read_is_not_moved(store: TimerStore) -> None:
    first, second = build_timer(), build_timer()
    assert store.move(first, NOW, NOW + HOUR) is None
    assert store.get(first.key) is None
    put_new(store, first)
    store.put(second, first, NOW)
    assert store.move(first, NOW, NOW + HOUR) is None
    assert store.get(first.key) == second
    taken = take_one(store, second)
    assert reschedule_one(store, taken.take, NOW)
    # The same time and nobody has it, but an attempt was made.
    assert store.move(second, NOW, NOW + HOUR) is None
    assert get(store, second) == replace(second, takes=1)


def test_a_taken_timer_is_not_moved_before_its_take_ends(store: TimerStore, rival: TimerStore) -> None:
    timer = build_timer()
    put_new(store, timer)
    taken = take_one(store, timer)
    for cell in (store, rival):
        for read in (timer, taken):
            assert cell.move(read, NOW, NOW + HOUR) is None
    assert store.get(timer.key) == taken
    later = taken.taken_until
    moved = rival.move(taken, later, later + HOUR)
    assert moved == replace(timer, execute_at=later + HOUR, takes=2)
    # The cell that had taken it comes back.
    assert not reschedule_one(store, taken.take, later)
    assert store.remove([taken.take]) == 0
    assert store.get(timer.key) == moved


def test_a_postponed_timer_can_be_moved(store: TimerStore) -> None:
    timer = build_timer()
    put_new(store, timer)
    assert store.postpone(timer, NOW, NOW + HOUR)
    assert store.move(get(store, timer), NOW, NOW + MINUTE)
    assert list_due(store, NOW + MINUTE) == [timer.key.timer_id]


def test_a_timer_that_was_moved_away_and_back_is_not_as_it_was(store: TimerStore) -> None:
    """A write that names the first state, and whose outcome was unknown, may come late."""
    first = build_timer()
    put_new(store, first)
    away = store.move(first, NOW, NOW + HOUR)
    assert away is not None
    back = store.move(away, NOW, first.execute_at)
    assert back == replace(first, takes=2)
    with pytest.raises(TimerConflict):
        store.put(build_timer(), first, NOW)
    assert not store.delete(first, NOW)
    assert store.take([first], NOW, NOW + MINUTE) == []
    assert not store.postpone(first, NOW, NOW + MINUTE)
    assert store.move(first, NOW, NOW + 2 * HOUR) is None
    assert store.get(first.key) == back


# --- due ----------------------------------------------------------------------------------------------------------


def test_due_timers_come_in_the_order_of_their_times(store: TimerStore) -> None:
    timers = build_timers_of_shard(SHARD, 5)
    times = [NOW, NOW - HOUR, NOW + timedelta(milliseconds=1), NOW - 2 * HOUR, NOW + HOUR]
    put_new(store, *(replace(timer, execute_at=time) for timer, time in zip(timers, times, strict=True)))
    ids = [timer.key.timer_id for timer in timers]
    assert list_due(store) == [ids[3], ids[1], ids[0]]
    assert list_due(store, NOW, NOW + HOUR) == [ids[3], ids[1], ids[0], ids[2], ids[4]]
    assert list_due(store, NOW, NOW + timedelta(microseconds=999)) == [ids[3], ids[1], ids[0]]
    assert store.due((SHARD + 1) % NUM_SHARDS, NOW, NOW + HOUR, None, 1000).timers == []


def test_pages_of_due_timers_contain_each_once(store: TimerStore) -> None:
    """Timers that are due at the same moment are no exception."""
    timers = build_timers_of_shard(SHARD, 23)
    put_new(store, *timers[:20], *(replace(timer, execute_at=NOW - HOUR) for timer in timers[20:]))
    found: list[str] = []
    after: Position | None = None
    for _ in range(30):
        page = store.due(SHARD, NOW, NOW, after, 5)
        assert len(page.timers) <= 5
        found += [timer.key.timer_id for timer in page.timers]
        after = page.after
        if after is None:
            break
    assert after is None
    assert Counter(found) == Counter(timer.key.timer_id for timer in timers)
    assert set(found[:3]) == {timer.key.timer_id for timer in timers[20:]}


def test_the_first_pages_of_several_shards_are_those_of_each(store: TimerStore) -> None:
    shards = [SHARD, (SHARD + 1) % NUM_SHARDS, (SHARD + 2) % NUM_SHARDS]
    for shard, count in zip(shards, (7, 0, 2), strict=True):
        timers = build_timers_of_shard(shard, count + 1)
        put_new(store, *timers[:count], replace(timers[count], execute_at=NOW + HOUR))
    taken, *_ = store.due(SHARD, NOW, NOW, None, 1).timers
    assert store.take([taken], NOW - SECOND, NOW + HOUR)
    pages = store.first_due(shards, NOW, NOW, 3, own=True)
    assert pages == [store.due(shard, NOW, NOW, None, 3) for shard in shards]
    assert [len(page.timers) for page in pages] == [3, 0, 2]
    assert taken.key in {timer.key for timer in pages[0].timers}
    assert [page.after is None for page in pages] == [False, True, True]
    others = store.first_due(shards, NOW, NOW, 10, own=False)
    assert [len(page.timers) for page in others] == [6, 0, 2]
    assert taken.key not in {timer.key for timer in others[0].timers}


def test_timers_that_are_due_after_a_time_are_found_without_the_earlier_ones(store: TimerStore) -> None:
    timers = [
        replace(timer, execute_at=NOW + (number // 2) * timedelta(milliseconds=1))
        for number, timer in enumerate(build_timers_of_shard(SHARD, 8))
    ]
    put_new(store, *timers)
    after: Position | datetime | None = NOW + timedelta(microseconds=500)
    found: list[StoredTimer] = []
    for _ in range(10):
        page = store.due(SHARD, NOW, NOW + timedelta(milliseconds=2), after, 3)
        found += page.timers
        after = page.after
        if after is None:
            break
    assert {timer.key for timer in found} == {timer.key for timer in timers[2:6]}
    assert [timer.execute_at for timer in found] == [timer.execute_at for timer in timers[2:6]]
    for late in (NOW + timedelta(milliseconds=3), NOW + HOUR):
        assert store.due(SHARD, NOW, NOW + timedelta(milliseconds=3), late, 3) == ([], None)


def test_a_position_remains_valid_when_its_timer_is_gone(store: TimerStore) -> None:
    timers = [
        replace(timer, execute_at=NOW - HOUR + n * SECOND)
        for n, timer in enumerate(build_timers_of_shard(SHARD, 4))
    ]
    put_new(store, *timers)
    page = store.due(SHARD, NOW, NOW, None, 2)
    assert page.after is not None
    assert all(store.delete(timer, NOW) for timer in page.timers)
    assert store.due(SHARD, NOW, NOW, page.after, 2).timers == timers[2:]


def test_a_taken_timer_is_due_for_its_own_cell_only_until_the_take_ends(
    store: TimerStore, rival: TimerStore
) -> None:
    timer = build_timer()
    put_new(store, timer)
    taken = take_one(store, timer)
    assert list_due(store) == [timer.key.timer_id]
    assert list_due(rival) == []
    assert list_due(rival, taken.taken_until - timedelta(milliseconds=1)) == []
    assert list_due(rival, taken.taken_until) == [timer.key.timer_id]


# --- takes --------------------------------------------------------------------------------------------------------


def test_a_take_counts_and_names_the_cell(store: TimerStore) -> None:
    timer = build_timer()
    put_new(store, timer)
    (taken,) = store.take([timer], NOW, NOW + MINUTE + timedelta(microseconds=1))
    assert taken == replace(
        timer, takes=1, taken_until=NOW + MINUTE + timedelta(milliseconds=1), taken_by=CELL
    )
    assert store.get(timer.key) == taken


def test_many_timers_are_taken_at_once_and_only_those_that_are_unchanged(
    store: TimerStore, rival: TimerStore
) -> None:
    timers = build_timers_of_shard(SHARD, 250)
    put_new(store, *timers)
    lost = {timer.key for timer in rival.take(timers[:3] + timers[100:200], NOW, NOW + MINUTE)}
    assert store.delete(timers[240], NOW)
    won = store.take(timers, NOW, NOW + MINUTE)
    expected = [timer.key for timer in timers if timer.key not in lost | {timers[240].key}]
    assert [timer.key for timer in won] == expected
    assert all(timer.taken_by == CELL and timer.takes == 1 for timer in won)
    assert store.take([], NOW, NOW + MINUTE) == []


def test_a_taken_timer_cannot_be_taken_again_before_its_take_ends(
    store: TimerStore, rival: TimerStore
) -> None:
    timer = build_timer()
    put_new(store, timer)
    taken = take_one(store, timer)
    for cell in (store, rival):
        assert cell.take([timer], NOW, NOW + HOUR) == []
        assert cell.take([taken], NOW, NOW + HOUR) == []
    (again,) = rival.take([taken], taken.taken_until, taken.taken_until + MINUTE)
    assert (again.takes, again.taken_by) == (2, OTHER_CELL)


def test_a_timer_that_was_changed_since_it_was_read_cannot_be_taken(store: TimerStore) -> None:
    first, second = build_timer(), build_timer(execute_at=NOW + HOUR)
    put_new(store, first)
    store.put(second, first, NOW)
    assert store.take([first], NOW, NOW + MINUTE) == []
    assert store.get(first.key) == second


def test_a_retry_that_was_rescheduled_since_it_was_read_cannot_be_taken_early(
    store: TimerStore, rival: TimerStore
) -> None:
    """The first cell records its outcome after its take has ended, while the second has read the row already."""
    timer = build_timer()
    put_new(store, timer)
    taken = take_one(store, timer)
    later = taken.taken_until
    (read,) = rival.due(SHARD, later, later, None, 1).timers
    assert reschedule_one(store, taken.take, later + HOUR)
    assert rival.take([read], later, later + MINUTE) == []
    assert list_due(rival, later) == []


def test_a_stale_take_changes_nothing(store: TimerStore, rival: TimerStore) -> None:
    timer = build_timer()
    put_new(store, timer)
    stale = take_one(store, timer)
    current = take_one(rival, stale, stale.taken_until)
    assert not reschedule_one(store, stale.take, NOW + HOUR, Progress(attempts=9))
    assert store.remove([stale.take]) == 0
    # The right number in the wrong cell.
    assert not reschedule_one(store, current.take, NOW + HOUR)
    assert store.remove([current.take]) == 0
    assert store.get(timer.key) == current


def test_a_take_of_an_earlier_revision_changes_nothing(store: TimerStore) -> None:
    first, second = build_timer(), build_timer()
    put_new(store, first)
    stale = take_one(store, first)
    store.put(second, stale, stale.taken_until)
    current = take_one(store, second, stale.taken_until)
    assert current.takes == stale.takes
    assert not reschedule_one(store, stale.take, NOW + HOUR)
    assert store.remove([stale.take]) == 0
    assert store.get(first.key) == current


def test_a_rescheduled_timer_waits_for_its_next_attempt(store: TimerStore, rival: TimerStore) -> None:
    timer = build_timer(requested_at=NOW - HOUR)
    put_new(store, timer)
    taken = take_one(store, timer)
    progress = Progress(attempts=1, interruptions=2, first_started_at=NOW, next_seq=7)
    assert reschedule_one(store, taken.take, NOW + HOUR - timedelta(microseconds=1), progress)
    expected = replace(taken, execute_at=NOW + HOUR, progress=progress, taken_until=EPOCH, taken_by=None)
    assert store.get(timer.key) == expected
    assert list_due(rival, NOW + MINUTE) == []
    assert list_due(rival, NOW + HOUR) == [timer.key.timer_id]
    # A repeat, because the outcome of the first was unknown.
    assert not reschedule_one(store, taken.take, NOW + HOUR, progress)
    assert take_one(rival, expected, NOW + HOUR).takes == 2


def test_many_timers_are_rescheduled_at_once_and_each_gets_its_own_time(
    store: TimerStore, rival: TimerStore
) -> None:
    timers = [timer for shard in (SHARD, SHARD + 1) for timer in build_timers_of_shard(shard, 70)]
    put_new(store, *timers)
    taken = store.take(timers[:-2], NOW, NOW + MINUTE)
    not_own = rival.take(timers[-2:], NOW, NOW + MINUTE)
    attempts = [
        NextAttempt(
            timer.take,
            NOW + HOUR + number * SECOND,
            # The progress of every third one is kept.
            Progress(number, 1, NOW + number * SECOND if number % 2 else None, number + 2)
            if number % 3
            else None,
        )
        for number, timer in enumerate([*taken, *not_own])
    ]
    stale = NextAttempt(taken[0].take._replace(number=7), NOW, Progress(99))
    assert store.reschedule([stale, *attempts]) == len(taken)
    for timer, attempt in zip(taken, attempts, strict=False):
        assert store.get(timer.key) == replace(
            timer,
            execute_at=attempt.execute_at,
            taken_until=EPOCH,
            taken_by=None,
            progress=attempt.progress or timer.progress,
        )
    assert [store.get(timer.key) for timer in not_own] == not_own
    # A repeat.
    assert store.reschedule(attempts) == 0
    assert store.reschedule([]) == 0


def test_a_released_timer_is_due_at_once(store: TimerStore, rival: TimerStore) -> None:
    timer = build_timer(progress=Progress(attempts=3))
    put_new(store, timer)
    taken = take_one(store, timer)
    assert reschedule_one(store, taken.take, taken.execute_at)
    assert store.get(timer.key) == replace(timer, takes=1)
    assert list_due(rival) == [timer.key.timer_id]


def test_ended_timers_are_removed_together(store: TimerStore, rival: TimerStore) -> None:
    timers = build_timers_of_shard(SHARD, 150)
    put_new(store, *timers)
    takes = [timer.take for timer in store.take(timers[:140], NOW, NOW + MINUTE)]
    not_own = [timer.take for timer in rival.take(timers[140:145], NOW, NOW + MINUTE)]
    assert store.remove([*takes, *not_own, timers[149].take]) == 140
    assert store.remove(takes) == 0
    assert set(list_due(store, NOW + HOUR)) == {timer.key.timer_id for timer in timers[140:]}
    assert store.remove([]) == 0


def test_a_postponed_timer_is_not_due_and_not_taken(store: TimerStore, rival: TimerStore) -> None:
    timer = build_timer(format=99)
    put_new(store, timer)
    assert store.postpone(timer, NOW, NOW + MINUTE)
    assert not store.postpone(timer, NOW, NOW + MINUTE)
    postponed = get(store, timer)
    assert (postponed.takes, postponed.taken_by, postponed.is_taken(NOW)) == (0, None, False)
    for cell in (store, rival):
        assert list_due(cell, NOW + MINUTE - SECOND) == []
        assert list_due(cell, NOW + MINUTE) == [timer.key.timer_id]
    # Its owner may still change it.
    assert store.delete(postponed, NOW)


# --- lists --------------------------------------------------------------------------------------------------------


def test_a_scan_returns_each_timer_of_a_namespace_once(store: TimerStore) -> None:
    timers = [build_timer(f"timer-{n}") for n in range(40)]
    other_tenants = QualifiedNamespace(INTRUDER, ALERTS.name)
    put_new(store, *timers, *(build_timer(f"timer-{n}", NOW, other_tenants) for n in range(5)))
    found: list[StoredTimer] = []
    after: Position | None = None
    for _ in range(100):
        page = store.scan(ALERTS, NUM_SHARDS, after, 7)
        assert len(page.timers) <= 7
        found += page.timers
        after = page.after
        if after is None:
            break
    assert after is None
    assert found == sorted(timers, key=lambda timer: (timer.key.shard, timer.key.timer_id))


def test_a_scan_of_an_empty_namespace_ends(store: TimerStore) -> None:
    after: Position | None = None
    for _ in range(1000):
        page = store.scan(replace(ALERTS, name="empty"), 4096, after, 100)
        assert page.timers == []
        after = page.after
        if after is None:
            return
    pytest.fail("the list has no end")


def test_timers_are_counted_by_shard(store: TimerStore) -> None:
    timers = build_timers_of_shard(SHARD, 4)
    put_new(store, *timers[:3], replace(timers[3], execute_at=NOW + HOUR))
    take_one(store, timers[0])
    counted, empty = store.count_timers([SHARD, (SHARD + 1) % NUM_SHARDS], NOW)
    assert counted == (SHARD, 4, 2)
    assert empty[1:] == (0, 0)


# --- shards, members, namespaces ----------------------------------------------------------------------------------


def test_a_claim_increments_the_version_and_names_the_owner(store: TimerStore) -> None:
    (seen,) = store.shards([5])
    assert seen == ShardOwnership(5, 0, None, None, {})
    assert store.claim(seen, "owner-1", {"host": "a"}) == Claim(5, 1)
    first, untouched = store.shards([5, 6])
    assert (first.shard, first.version, first.owner, first.metadata) == (5, 1, "owner-1", {"host": "a"})
    assert first.claimed_at is not None
    assert untouched == ShardOwnership(6, 0, None, None, {})
    assert store.claim(first, "owner-2", {}) == Claim(5, 2)
    assert store.shards([5])[0].owner == "owner-2"


def test_a_claim_of_a_stale_version_changes_nothing(store: TimerStore, rival: TimerStore) -> None:
    (seen,) = store.shards([5])
    assert rival.claim(seen, "owner-1", {})
    assert store.claim(seen, "owner-2", {}) is None
    (current,) = store.shards([5])
    assert store.claim(current, "owner-2", {}) == Claim(5, 2)
    assert store.claim(current, "owner-3", {}) is None


def test_a_released_shard_has_no_owner_and_one_that_was_claimed_by_others_keeps_it(
    store: TimerStore, rival: TimerStore
) -> None:
    claims = [claim for seen in store.shards([1, 2, 3]) if (claim := store.claim(seen, "owner-1", {}))]
    assert rival.claim(store.shards([2])[0], "owner-2", {}) == Claim(2, 2)
    store.release(claims)
    assert [(shard.version, shard.owner) for shard in store.shards([1, 2, 3])] == [
        (1, None),
        (2, "owner-2"),
        (1, None),
    ]
    assert rival.claim(store.shards([1])[0], "owner-2", {}) == Claim(1, 2)


def test_shards_are_not_timers(store: TimerStore) -> None:
    assert store.claim(store.shards([SHARD])[0], "owner", {})
    assert store.beat(Member(new_id(), 1, {}))
    store.declare_namespace(ALERTS, NUM_SHARDS, {})
    assert list_due(store, NOW) == []
    assert store.scan(ALERTS, NUM_SHARDS, None, 10).timers == []
    assert store.count_timers([SHARD], NOW) == [(SHARD, 0, 0)]


def test_a_member_lives_until_it_is_removed(store: TimerStore, rival: TimerStore) -> None:
    first, second = (Member(new_id(), 1, {"host": name}) for name in "ab")
    assert store.beat(first)
    assert rival.beat(second)
    assert store.beat(first)  # a repeat
    assert store.beat(first._replace(beats=2))
    assert set(map(str, rival.members())) == {str(first._replace(beats=2)), str(second)}
    # It has beaten since it was seen.
    assert not rival.remove_member(first)
    assert rival.remove_member(first._replace(beats=2))
    assert not store.beat(first._replace(beats=3))
    assert rival.members() == [second]


def test_a_namespace_is_declared_once(store: TimerStore, rival: TimerStore) -> None:
    declared = store.declare_namespace(ALERTS, 16, {"hosts": "x"})
    assert (declared.namespace, declared.num_shards, declared.fingerprint) == (ALERTS, 16, {"hosts": "x"})
    assert rival.declare_namespace(ALERTS, 256, {"hosts": "y"}) == declared
    intruder = rival.declare_namespace(QualifiedNamespace(INTRUDER, ALERTS.name), 256, {})
    assert sorted(map(str, store.namespaces())) == sorted(map(str, [declared, intruder]))


def test_a_fingerprint_is_changed_as_it_was_seen_only(store: TimerStore, rival: TimerStore) -> None:
    seen = store.declare_namespace(ALERTS, 16, {"hosts": "x"})
    assert store.change_fingerprint(seen, {"hosts": "y"})
    assert not rival.change_fingerprint(seen, {"hosts": "z"})
    (declared,) = rival.namespaces()
    assert (declared.num_shards, declared.fingerprint) == (16, {"hosts": "y"})


# --- operators ----------------------------------------------------------------------------------------------------


def test_a_migrated_store_has_no_problems_and_migrating_again_keeps_its_timers(store: TimerStore) -> None:
    timer = build_timer()
    put_new(store, timer)
    store.migrate()
    assert store.get(timer.key) == timer
    assert [finding for finding in store.check() if not finding.is_ok] == []


def test_the_clock_and_the_size_are_known(store: TimerStore) -> None:
    assert store.read_clock().utcoffset() == timedelta(0)
    size = store.measure_bytes()
    assert size is None or size >= 0


def test_a_closed_store_connects_again(store: TimerStore) -> None:
    put_new(store, timer := build_timer())
    store.close()
    assert store.get(timer.key) == timer


# --- races --------------------------------------------------------------------------------------------------------


def test_one_of_twenty_processes_wins_each_version_of_a_shard(stores: StoreUnderTest) -> None:
    if stores.spec is None:
        pytest.skip("memory is not shared by processes")
    won = sorted(chain.from_iterable(race(stores.spec, claim_repeatedly, SHARD)))
    assert won == list(range(1, len(won) + 1))
    assert CLAIMS <= len(won) <= CLAIMS * PROCESSES
    assert stores.build().shards([SHARD])[0].version == len(won)


def test_one_of_twenty_processes_wins_each_take(stores: StoreUnderTest) -> None:
    if stores.spec is None:
        pytest.skip("memory is not shared by processes")
    timers = build_timers_of_shard(SHARD, 120)
    put_new(stores.build(), *timers)
    won = Counter(chain.from_iterable(race(stores.spec, take_repeatedly, SHARD)))
    expected = [(timer.key.timer_id, number) for timer in timers for number in range(1, TAKES + 1)]
    assert won == Counter(expected)


def test_one_of_twenty_processes_wins_each_move(stores: StoreUnderTest) -> None:
    if stores.spec is None:
        pytest.skip("memory is not shared by processes")
    timers = build_timers_of_shard(SHARD, 20)
    put_new(stores.build(), *timers)
    won = Counter(chain.from_iterable(race(stores.spec, move_repeatedly, SHARD)))
    assert won == Counter((timer.key.timer_id, number) for timer in timers for number in range(1, TAKES + 1))
    assert {timer.takes for timer in stores.build().due(SHARD, NOW + HOUR, NOW + HOUR, None, 100).timers} == {
        TAKES
    }


def test_several_threads_can_use_a_new_store_at_once_and_one_wins_each_write(stores: StoreUnderTest) -> None:
    timers = build_timers_of_shard(SHARD, 3)
    put_new(stores.build(), *timers)
    shared, barrier = stores.build(), threading.Barrier(THREADS)

    def use(number: int) -> tuple[list[str], list[str]]:
        own = build_timer(f"own-{number}")
        barrier.wait(120)
        put_new(shared, own)
        assert shared.get(own.key) == own
        moved = [timer for timer in timers if shared.move(timer, NOW, NOW - MINUTE)]
        barrier.wait(120)
        page = shared.due(SHARD, NOW, NOW - MINUTE, None, 10)
        barrier.wait(120)
        taken = shared.take(page.timers, NOW, NOW + MINUTE)
        assert reschedule_one(shared, take_one(shared, own).take, NOW + HOUR)
        assert shared.remove([timer.take for timer in taken]) == len(taken)
        return [timer.key.timer_id for timer in moved], [timer.key.timer_id for timer in taken]

    with ThreadPoolExecutor(THREADS) as pool:
        results = list(pool.map(use, range(THREADS)))
    expected = Counter(timer.key.timer_id for timer in timers)
    assert Counter(chain.from_iterable(moved for moved, _ in results)) == expected
    assert Counter(chain.from_iterable(taken for _, taken in results)) == expected

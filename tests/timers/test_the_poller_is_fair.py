"""When more is due than a pass can take, every tenant gets its share, and what the quiet leave goes to the busy."""

from __future__ import annotations

import uuid
from collections import Counter
from datetime import datetime
from itertools import count as ticks
from typing import Any

import pytest
from django.db import connection

from eventservice.db.now import pin_time
from tests.timers.support import after, claim, ids, polling, stored
from timers.poller import (
    LARGE_REQUEST_BYTES,
    MIN_SEARCH_YIELD,
    MIN_TENANT_SHARE,
    REST_FACTOR,
    HeldBack,
    Poller,
)

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]

BUSY, *QUIET = [uuid.UUID(int=number + 1) for number in range(5)]
LIMIT = 100
# Who has something due; what BUSY has, twice; the versions; the marks; and the transaction's two ends.
RUSH_QUERIES = 7


def taken(poller: Poller, limit: int = LIMIT, held_back: HeldBack | None = None) -> Counter[uuid.UUID]:
    return Counter(timer.tenant_id for timer in claim(poller, limit, held_back or HeldBack()))


def test_a_busy_tenant_does_not_keep_the_others_waiting() -> None:
    stored(BUSY, 500, due_at=after(-60))
    for tenant in QUIET:
        stored(tenant, 3)
    first = taken(polling())
    assert first == {BUSY: LIMIT - 12, **dict.fromkeys(QUIET, 3)}


def test_several_busy_tenants_share_alike() -> None:
    for tenant in (BUSY, *QUIET):
        stored(tenant, 60)
    assert set(taken(polling()).values()) == {LIMIT // 5}


def test_what_the_quiet_ones_leave_is_taken_to_the_last_place() -> None:
    for tenant, count in ((BUSY, 80), (QUIET[0], 80), (QUIET[1], 1)):
        stored(tenant, count)
    first = taken(polling())
    assert first.total() == LIMIT
    assert first[QUIET[1]] == 1
    assert min(first[BUSY], first[QUIET[0]]) >= 33


def test_of_one_tenant_the_longest_due_are_taken_first() -> None:
    late = stored(BUSY, 50, due_at=after(-60))
    stored(BUSY, 100)
    assert ids(late) <= ids(claim(polling(), LIMIT))


def test_with_more_tenants_than_places_all_have_their_turn() -> None:
    """A share is never so small that only overhead is left: so some wait, but not the same ones each time."""
    for tenant in (BUSY, *QUIET):
        stored(tenant, 5 * MIN_TENANT_SHARE)
    poller = polling()
    first = [next(iter(taken(poller, MIN_TENANT_SHARE))) for _ in range(5)]
    assert sorted(first) == sorted([BUSY, *QUIET])


def test_what_is_taken_in_many_passes_is_each_timer_once() -> None:
    timers = [timer for tenant in (BUSY, *QUIET) for timer in stored(tenant, 47)]
    poller = polling()
    seen = [timer.service_call_id for _ in range(6) for timer in claim(poller, 45)]
    assert sorted(seen) == sorted(ids(timers))


def test_once_the_rush_is_over_order_is_not_asked_for_any_more() -> None:
    stored(BUSY, LIMIT)
    poller = polling()
    assert (taken(poller).total(), poller.crowded) == (LIMIT, True)
    assert (taken(poller).total(), poller.crowded) == (0, False)


@pytest.mark.parametrize("count", [5, 200])
def test_who_is_held_back_waits_alone(count: int) -> None:
    for tenant in (BUSY, QUIET[0]):
        stored(tenant, count)
    poller = polling()
    assert set(taken(poller, held_back=HeldBack(tenants=[BUSY]))) == {QUIET[0]}
    assert BUSY in taken(poller)


@pytest.mark.parametrize("count", [5, 200])
def test_a_lane_that_is_held_back_waits_alone(count: int) -> None:
    stored(BUSY, count, host="slow.test")
    stored(BUSY, 5, host="fine.test")
    stored(QUIET[0], 5, host="slow.test")
    poller = polling()
    due = claim(poller, LIMIT, HeldBack(hosts=["slow.test", "none.test"]))
    assert [timer.host for timer in due] == ["fine.test"] * 5
    assert taken(poller)[QUIET[0]] == 5


@pytest.mark.parametrize("count", [5, 200])
def test_a_lane_that_is_held_back_for_one_tenant_waits_for_that_one_alone(count: int) -> None:
    stored(BUSY, count, host="slow.test")
    stored(BUSY, 5, host="fine.test")
    stored(QUIET[0], 5, host="slow.test")
    held_back = HeldBack(hosts_by_tenant={BUSY: ["slow.test", "none.test"], QUIET[1]: ["slow.test"]})
    due = claim(polling(), LIMIT, held_back)
    assert sorted({(timer.tenant_id, timer.host) for timer in due}) == [
        (BUSY, "fine.test"),
        (QUIET[0], "slow.test"),
    ]


@pytest.mark.parametrize("large", [HeldBack([BUSY]), HeldBack(hosts_by_tenant={BUSY: ["slow.test"]})])
@pytest.mark.parametrize("count", [5, 200])
def test_of_those_whose_large_requests_are_held_back_the_small_go_on(count: int, large: HeldBack) -> None:
    stored(BUSY, count, host="slow.test", request_bytes=LARGE_REQUEST_BYTES)
    small = stored(BUSY, 5, host="slow.test", request_bytes=LARGE_REQUEST_BYTES - 1)
    others = stored(QUIET[0], 5, host="slow.test", request_bytes=LARGE_REQUEST_BYTES)
    assert ids(claim(polling(), LIMIT, HeldBack(large=large))) == ids(small) | ids(others)


def test_a_thousand_tenants_hold_back_a_lane_each() -> None:
    stored(BUSY, 3, host="slow.test")
    waiting = {uuid.UUID(int=number): ["slow.test"] for number in range(1, 1500)}
    assert claim(polling(), LIMIT, HeldBack(hosts_by_tenant=waiting)) == []


def test_what_is_newly_due_is_found_while_the_search_past_those_who_are_held_back_rests() -> None:
    stored(BUSY, 5, due_at=after(-60))
    poller = slow_poller()
    only_quiet = HeldBack(tenants=[BUSY], hosts=["none.test"])
    assert claim(poller, LIMIT, only_quiet) == []
    old, new = stored(QUIET[0], 3, due_at=after(-60)), stored(QUIET[1], 3)
    first, *later = [ids(claim(poller, LIMIT, only_quiet)) for _ in range(REST_FACTOR + 1)]
    assert first == ids(new)
    assert ids(old) in later


@pytest.mark.parametrize("limit", [MIN_SEARCH_YIELD, LIMIT])
def test_a_search_that_finds_a_batch_beside_those_who_are_held_back_needs_no_rest(limit: int) -> None:
    stored(BUSY, 5, due_at=after(-60))
    stored(QUIET[0], 2 * limit, due_at=after(-60))
    poller = slow_poller()
    assert [taken(poller, limit, HeldBack(tenants=[BUSY])).total() for _ in range(2)] == [limit, limit]


def test_with_nobody_held_back_all_that_is_due_is_looked_for() -> None:
    poller = slow_poller()
    assert claim(poller, LIMIT) == []
    stored(QUIET[0], 3, due_at=after(-60))
    assert taken(poller) == {QUIET[0]: 3}


def test_the_index_tells_who_is_held_back_so_that_no_row_of_theirs_is_fetched() -> None:
    with connection.cursor() as cursor:
        found = connection.introspection.get_constraints(cursor, "timer_schedules")
    assert {"host", "tenant_id"} <= set(found["idx_timer_schedules_shard"]["columns"])


def slow_poller() -> Poller:
    """Each search takes it a second."""
    poller = polling()
    poller.clock = ticks(1.0).__next__
    return poller


@pytest.mark.parametrize("now", [after(1), after(-3600)], ids=["later", "after the clock was set back"])
def test_a_tenant_that_comes_during_a_rush_is_heard_within_a_second(now: datetime) -> None:
    stored(BUSY, 500, due_at=after(-7200))
    poller = slow_poller()
    claim(poller, LIMIT)
    stored(QUIET[0], 3, due_at=now)
    with pin_time(now):
        assert taken(poller)[QUIET[0]] == 3


def test_tenants_without_anything_due_cost_nothing_in_a_rush(django_assert_num_queries: Any) -> None:
    stored(BUSY, 500, due_at=after(-60))
    for tenant in QUIET:
        stored(tenant, 2, state="Reached", reached_at=after(-50))
        stored(tenant, 2, due_at=after(3600))
    poller = slow_poller()
    claim(poller, LIMIT)
    with django_assert_num_queries(RUSH_QUERIES):
        claim(poller, LIMIT)

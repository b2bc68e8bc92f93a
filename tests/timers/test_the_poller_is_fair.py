"""When more is due than one pass can claim, every tenant gets its share, and busy tenants get what others leave."""

from __future__ import annotations

import uuid
from collections import Counter
from datetime import datetime
from itertools import count as ticks
from typing import Any

import pytest
from django.db import connection

from eventservice.db.now import pin_time
from tests.timers.support import add_to_noon, call_ids, claim_due, create_poller, create_timers
from timers.poller import MIN_SEARCH_YIELD, MIN_TENANT_SHARE, REST_FACTOR, Poller
from timers.port import LARGE_REQUEST_BYTES, HeldBack

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]

BUSY, *QUIET = [uuid.UUID(int=number + 1) for number in range(5)]
LIMIT = 100
# Tenants; those with due timers; the timers of BUSY, twice; the shards' versions; the update; begin and commit.
RUSH_QUERIES = 8


def count_claimed(
    poller: Poller, limit: int = LIMIT, held_back: HeldBack | None = None
) -> Counter[uuid.UUID]:
    return Counter(timer.tenant_id for timer in claim_due(poller, limit, held_back or HeldBack()))


def test_a_busy_tenant_does_not_keep_the_others_waiting() -> None:
    create_timers(BUSY, 500, due_at=add_to_noon(-60))
    for tenant in QUIET:
        create_timers(tenant, 3)
    first = count_claimed(create_poller())
    assert first == {BUSY: LIMIT - 12, **dict.fromkeys(QUIET, 3)}


def test_several_busy_tenants_share_alike() -> None:
    for tenant in (BUSY, *QUIET):
        create_timers(tenant, 60)
    assert set(count_claimed(create_poller()).values()) == {LIMIT // 5}


def test_busy_tenants_fill_the_places_that_quiet_ones_leave() -> None:
    for tenant, count in ((BUSY, 80), (QUIET[0], 80), (QUIET[1], 1)):
        create_timers(tenant, count)
    first = count_claimed(create_poller())
    assert first.total() == LIMIT
    assert first[QUIET[1]] == 1
    assert min(first[BUSY], first[QUIET[0]]) >= 33


def test_the_longest_due_timers_of_a_tenant_are_claimed_first() -> None:
    late = create_timers(BUSY, 50, due_at=add_to_noon(-60))
    create_timers(BUSY, 100)
    assert call_ids(late) <= call_ids(claim_due(create_poller(), LIMIT))


def test_with_more_tenants_than_places_all_have_their_turn() -> None:
    """A share has a minimum, so some tenants wait, but not the same ones each time."""
    for tenant in (BUSY, *QUIET):
        create_timers(tenant, 5 * MIN_TENANT_SHARE)
    poller = create_poller()
    first = [next(iter(count_claimed(poller, MIN_TENANT_SHARE))) for _ in range(5)]
    assert sorted(first) == sorted([BUSY, *QUIET])


def test_many_passes_claim_each_timer_once() -> None:
    timers = [timer for tenant in (BUSY, *QUIET) for timer in create_timers(tenant, 47)]
    poller = create_poller()
    seen = [timer.service_call_id for _ in range(6) for timer in claim_due(poller, 45)]
    assert sorted(seen) == sorted(call_ids(timers))


def test_after_a_rush_the_order_does_not_matter_any_more() -> None:
    create_timers(BUSY, LIMIT)
    poller = create_poller()
    assert (count_claimed(poller).total(), poller.crowded) == (LIMIT, True)
    assert (count_claimed(poller).total(), poller.crowded) == (0, False)


@pytest.mark.parametrize("count", [5, 200])
def test_only_the_tenant_that_is_held_back_waits(count: int) -> None:
    for tenant in (BUSY, QUIET[0]):
        create_timers(tenant, count)
    poller = create_poller()
    assert set(count_claimed(poller, held_back=HeldBack(tenants=[BUSY]))) == {QUIET[0]}
    assert BUSY in count_claimed(poller)


@pytest.mark.parametrize("count", [5, 200])
def test_calls_to_a_host_that_is_held_back_wait_and_all_others_go_on(count: int) -> None:
    create_timers(BUSY, count, host="slow.test")
    create_timers(BUSY, 5, host="fine.test")
    create_timers(QUIET[0], 5, host="slow.test")
    poller = create_poller()
    due = claim_due(poller, LIMIT, HeldBack(hosts=["slow.test", "none.test"]))
    assert [timer.host for timer in due] == ["fine.test"] * 5
    assert count_claimed(poller)[QUIET[0]] == 5


@pytest.mark.parametrize("count", [5, 200])
def test_a_host_that_is_held_back_for_one_tenant_is_free_for_the_others(count: int) -> None:
    create_timers(BUSY, count, host="slow.test")
    create_timers(BUSY, 5, host="fine.test")
    create_timers(QUIET[0], 5, host="slow.test")
    held_back = HeldBack(hosts_by_tenant={BUSY: ["slow.test", "none.test"], QUIET[1]: ["slow.test"]})
    due = claim_due(create_poller(), LIMIT, held_back)
    assert sorted({(timer.tenant_id, timer.host) for timer in due}) == [
        (BUSY, "fine.test"),
        (QUIET[0], "slow.test"),
    ]


@pytest.mark.parametrize("large", [HeldBack([BUSY]), HeldBack(hosts_by_tenant={BUSY: ["slow.test"]})])
@pytest.mark.parametrize("count", [5, 200])
def test_small_requests_go_on_while_large_ones_are_held_back(count: int, large: HeldBack) -> None:
    create_timers(BUSY, count, host="slow.test", request_bytes=LARGE_REQUEST_BYTES)
    small = create_timers(BUSY, 5, host="slow.test", request_bytes=LARGE_REQUEST_BYTES - 1)
    others = create_timers(QUIET[0], 5, host="slow.test", request_bytes=LARGE_REQUEST_BYTES)
    assert call_ids(claim_due(create_poller(), LIMIT, HeldBack(large=large))) == call_ids(small) | call_ids(
        others
    )


def test_a_thousand_tenants_may_each_have_a_host_held_back() -> None:
    create_timers(BUSY, 3, host="slow.test")
    waiting = {uuid.UUID(int=number): ["slow.test"] for number in range(1, 1500)}
    assert claim_due(create_poller(), LIMIT, HeldBack(hosts_by_tenant=waiting)) == []


def test_new_timers_are_found_while_the_full_search_rests() -> None:
    create_timers(BUSY, 5, due_at=add_to_noon(-60))
    poller = create_slow_poller()
    only_quiet = HeldBack(tenants=[BUSY], hosts=["none.test"])
    assert claim_due(poller, LIMIT, only_quiet) == []
    old, new = create_timers(QUIET[0], 3, due_at=add_to_noon(-60)), create_timers(QUIET[1], 3)
    first, *later = [call_ids(claim_due(poller, LIMIT, only_quiet)) for _ in range(REST_FACTOR + 1)]
    assert first == call_ids(new)
    assert call_ids(old) in later


@pytest.mark.parametrize("limit", [MIN_SEARCH_YIELD, LIMIT])
def test_a_search_that_finds_a_full_batch_needs_no_rest(limit: int) -> None:
    create_timers(BUSY, 5, due_at=add_to_noon(-60))
    create_timers(QUIET[0], 2 * limit, due_at=add_to_noon(-60))
    poller = create_slow_poller()
    assert [count_claimed(poller, limit, HeldBack(tenants=[BUSY])).total() for _ in range(2)] == [
        limit,
        limit,
    ]


def test_with_nothing_held_back_every_search_is_a_full_one() -> None:
    poller = create_slow_poller()
    assert claim_due(poller, LIMIT) == []
    create_timers(QUIET[0], 3, due_at=add_to_noon(-60))
    assert count_claimed(poller) == {QUIET[0]: 3}


def test_the_index_has_the_columns_by_which_timers_are_held_back() -> None:
    with connection.cursor() as cursor:
        found = connection.introspection.get_constraints(cursor, "timer_schedules")
    assert {"host", "tenant_id"} <= set(found["idx_timer_schedules_shard"]["columns"])


def create_slow_poller() -> Poller:
    """Return a poller whose every search takes a second."""
    poller = create_poller()
    poller.clock = ticks(1.0).__next__
    return poller


@pytest.mark.parametrize(
    "now", [add_to_noon(1), add_to_noon(-3600)], ids=["later", "after the clock was set back"]
)
def test_a_tenant_that_comes_during_a_rush_is_served_within_a_second(now: datetime) -> None:
    create_timers(BUSY, 500, due_at=add_to_noon(-7200))
    poller = create_slow_poller()
    claim_due(poller, LIMIT)
    create_timers(QUIET[0], 3, due_at=now)
    with pin_time(now):
        assert count_claimed(poller)[QUIET[0]] == 3


def test_tenants_without_anything_due_cost_nothing_in_a_rush(django_assert_num_queries: Any) -> None:
    create_timers(BUSY, 500, due_at=add_to_noon(-60))
    for tenant in QUIET:
        create_timers(tenant, 2, state="Reached", reached_at=add_to_noon(-50))
        create_timers(tenant, 2, due_at=add_to_noon(3600))
    poller = create_slow_poller()
    claim_due(poller, LIMIT)
    with django_assert_num_queries(RUSH_QUERIES):
        claim_due(poller, LIMIT)

"""Two engines that look at the same due timers at once start each call once."""

from __future__ import annotations

from collections import Counter
from functools import partial

from eventservice.db.leases import Fenced
from eventservice.tenants.models import Tenant
from orchestration.lifecycle import StartedCall
from tests.concurrency.races import ROUNDS, race
from tests.orchestration.support import ManualEngine, get_status, submit
from timers.models import TimerShard

CALLS = 20


def test_when_one_engine_has_just_lost_its_shards_to_the_other(acme: Tenant) -> None:
    for _ in range(ROUNDS):
        loser = ManualEngine()
        calls = {submit(acme) for _ in range(CALLS)}
        winner = take_over()
        found = race(partial(start_unless_fenced, loser), winner.start)
        # The winner skips the rows that the loser has locked, and finds them when it looks again.
        assert count_starts([*found, winner.start()]) == Counter(calls)
        assert found[0] == []
        assert all(get_status(acme, call) == "Running" for call in calls)
        free_all_shards()


def test_when_the_shards_change_hands_meanwhile(acme: Tenant) -> None:
    for _ in range(ROUNDS):
        loser = ManualEngine()
        calls = {submit(acme) for _ in range(CALLS)}
        taken, winners = race(partial(start_unless_fenced, loser), take_over)
        assert count_starts([taken, winners.start()]) == Counter(calls)
        free_all_shards()


def test_when_both_act_for_one_owner(acme: Tenant) -> None:
    for _ in range(ROUNDS):
        owner = ManualEngine()
        calls = {submit(acme) for _ in range(CALLS)}
        found = race(owner.start, owner.start)
        assert count_starts([*found, owner.start()]) == Counter(calls)
        free_all_shards()


def count_starts(batches: list[list[StartedCall]]) -> Counter[object]:
    return Counter(call.key.service_call_id for batch in batches for call in batch)


def take_over() -> ManualEngine:
    free_all_shards()
    winner = ManualEngine()
    assert len(winner.membership.leases.held) == TimerShard.objects.count()
    return winner


def start_unless_fenced(engine: ManualEngine) -> list[StartedCall]:
    try:
        return engine.start()
    except Fenced:
        return []


def free_all_shards() -> None:
    TimerShard.objects.update(owner_id=None)

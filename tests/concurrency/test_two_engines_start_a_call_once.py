"""However two engines come to look at the same due timers at once, each call is started once."""

from __future__ import annotations

from collections import Counter

from eventservice.tenants.models import Tenant
from orchestration.lifecycle import StartedCall
from tests.concurrency.races import ROUNDS, SHARDS, Node, node, race, status_of, submitted
from timers.models import TimerShard

CALLS = 20


def test_when_one_has_just_lost_its_shards_to_the_other(acme: Tenant) -> None:
    for _ in range(ROUNDS):
        loser = node()
        calls = {submitted(acme) for _ in range(CALLS)}
        winner = takes_over()
        found = race(loser.start_due, winner.start_due)
        # What the loser had locked before it was fenced, the winner finds when it looks again.
        assert starts([*found, winner.start_due()]) == Counter(calls)
        assert found[0] == []
        assert all(status_of(acme, call) == "Running" for call in calls)
        free_all_shards()


def test_when_the_shards_change_hands_meanwhile(acme: Tenant) -> None:
    for _ in range(ROUNDS):
        loser = node()
        calls = {submitted(acme) for _ in range(CALLS)}
        taken, winners = race(loser.start_due, takes_over)
        assert starts([taken, winners.start_due()]) == Counter(calls)
        free_all_shards()


def test_when_both_act_for_one_owner(acme: Tenant) -> None:
    for _ in range(ROUNDS):
        owner = node()
        calls = {submitted(acme) for _ in range(CALLS)}
        found = race(owner.start_due, owner.start_due)
        assert starts([*found, owner.start_due()]) == Counter(calls)
        free_all_shards()


def starts(batches: list[list[StartedCall]]) -> Counter[object]:
    return Counter(call.key.service_call_id for batch in batches for call in batch)


def takes_over() -> Node:
    free_all_shards()
    winner = node()
    assert len(winner.membership.leases.held) == SHARDS
    return winner


def free_all_shards() -> None:
    TimerShard.objects.update(owner_id=None)

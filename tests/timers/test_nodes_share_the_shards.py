"""Live nodes own all shards between them, each shard one of them, and hand over what falls to another."""

from __future__ import annotations

from datetime import datetime

import pytest
from django.db import transaction

from eventservice.db.leases import Fenced
from eventservice.db.now import pin_time
from tests.timers.support import after, joined
from timers.membership import NODE_LEASE, Membership, ensure_shards, list_live_node_ids, list_node_ids
from timers.models import Node, NodeRole, TimerShard

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]

SHARDS = 32


def settle(*members: Membership) -> None:
    """Two ticks each: first everyone lets go, then everyone takes."""
    for _ in range(2):
        for member in members:
            member.rebalance(SHARDS)


def held(member: Membership) -> set[int]:
    return set(member.leases.held)


def owners() -> dict[int, object]:
    return dict(TimerShard.objects.values_list("shard_id", "owner_id"))


def test_joining_is_a_row_with_a_lease(at_noon: datetime) -> None:
    member = joined()
    row = Node.objects.get()
    assert (row.owner_id, row.started_at, row.lease_until) == (member.owner_id, at_noon, at_noon + NODE_LEASE)
    assert list_node_ids() == [member.owner_id]
    assert list_live_node_ids(NodeRole.ENGINE) == {member.owner_id}


def test_a_beat_pushes_the_lease_on_and_tells_how_busy_the_node_is() -> None:
    member = joined()
    with pin_time(after(5)):
        member.heartbeat(7)
    row = Node.objects.get()
    assert (row.lease_until, row.in_flight) == (after(5) + NODE_LEASE, 7)


def test_a_beat_without_a_row_tells_the_node_that_it_is_fenced() -> None:
    member = joined()
    member.leave()
    with pytest.raises(Fenced):
        member.heartbeat(0)


def test_a_lone_node_takes_all_shards_at_once() -> None:
    member = joined()
    member.rebalance(SHARDS)
    assert held(member) == set(range(SHARDS))
    assert set(owners().values()) == {member.owner_id}


@pytest.mark.parametrize("count", [2, 3, 5])
def test_several_own_all_between_them_and_none_twice(count: int) -> None:
    members = [joined() for _ in range(count)]
    settle(*members)
    assert sorted(shard for member in members for shard in held(member)) == list(range(SHARDS))
    assert all(owners()[shard] == member.owner_id for member in members for shard in held(member))


def test_a_newcomer_takes_nothing_before_it_is_let_go() -> None:
    first = joined()
    settle(first)
    second = joined()
    second.rebalance(SHARDS)
    assert held(second) == set()

    settle(first, second)

    assert held(second)
    assert held(first) | held(second) == set(range(SHARDS))


def test_when_one_leaves_the_others_take_its_shards_and_keep_their_own() -> None:
    members = [joined() for _ in range(3)]
    settle(*members)
    gone, *rest = members
    before = [held(member) for member in rest]

    gone.hand_over(in_flight=0)
    gone.leave()
    settle(*rest)

    assert held(rest[0]) | held(rest[1]) == set(range(SHARDS))
    assert all(kept <= held(member) for kept, member in zip(before, rest, strict=True))


def test_who_hands_over_frees_its_shards_and_may_still_finish_what_it_began() -> None:
    members = [joined(), joined()]
    settle(*members)
    leaving, stays = members
    leaving.hand_over(in_flight=3)

    settle(leaving, stays)

    assert held(leaving) == set()
    assert held(stays) == set(range(SHARDS))
    assert Node.objects.get(pk=leaving.owner_id).in_flight == 3
    with transaction.atomic():
        leaving.fence()


def test_a_node_whose_lease_has_run_out_takes_nothing() -> None:
    member = joined()
    with pin_time(after(60)):
        member.rebalance(SHARDS)
    assert held(member) == set()


def test_more_shards_are_taken_when_a_larger_namespace_needs_them() -> None:
    member = joined()
    member.rebalance(4)
    member.rebalance(SHARDS)
    assert held(member) == set(range(SHARDS))


@pytest.mark.parametrize("steps", [[4], [4, 4], [4, 9], [9, 4], [1, 2, 1500]], ids=str)
def test_shard_rows_are_dense_and_never_fewer_than_before(steps: list[int]) -> None:
    for num_shards in steps:
        ensure_shards(num_shards)
    shards = TimerShard.objects.order_by("shard_id").values_list("shard_id", flat=True)
    assert list(shards) == list(range(max(steps)))
    assert set(owners().values()) == {None}

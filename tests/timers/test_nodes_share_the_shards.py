"""Live nodes share all shards: each is owned by one node, and is handed over when the shares change."""

from __future__ import annotations

from datetime import datetime

import pytest
from django.db import transaction

from eventservice.db.leases import Fenced
from eventservice.db.now import pin_time
from tests.timers.support import add_to_noon, join_node
from timers.membership import NODE_LEASE, Membership, ensure_shards, list_live_node_ids, list_node_ids
from timers.models import Node, NodeRole, TimerShard

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]

SHARDS = 32


def settle(*members: Membership) -> None:
    """Rebalance twice: first all nodes release shards, then all nodes claim them."""
    for _ in range(2):
        for member in members:
            member.rebalance(SHARDS)


def get_shards(member: Membership) -> set[int]:
    return set(member.leases.held)


def list_owners() -> dict[int, object]:
    return dict(TimerShard.objects.values_list("shard_id", "owner_id"))


def test_joining_is_a_row_with_a_lease(at_noon: datetime) -> None:
    member = join_node()
    row = Node.objects.get()
    assert (row.owner_id, row.started_at, row.lease_until) == (member.owner_id, at_noon, at_noon + NODE_LEASE)
    assert list_node_ids() == [member.owner_id]
    assert list_live_node_ids(NodeRole.ENGINE) == {member.owner_id}


def test_a_heartbeat_extends_the_lease_and_records_how_busy_the_node_is() -> None:
    member = join_node()
    with pin_time(add_to_noon(5)):
        member.heartbeat(7)
    row = Node.objects.get()
    assert (row.lease_until, row.in_flight) == (add_to_noon(5) + NODE_LEASE, 7)


def test_a_heartbeat_without_a_row_raises_fenced() -> None:
    member = join_node()
    member.leave()
    with pytest.raises(Fenced):
        member.heartbeat(0)


def test_a_lone_node_claims_all_shards_at_once() -> None:
    member = join_node()
    member.rebalance(SHARDS)
    assert get_shards(member) == set(range(SHARDS))
    assert set(list_owners().values()) == {member.owner_id}


@pytest.mark.parametrize("count", [2, 3, 5])
def test_several_nodes_own_every_shard_once(count: int) -> None:
    members = [join_node() for _ in range(count)]
    settle(*members)
    assert sorted(shard for member in members for shard in get_shards(member)) == list(range(SHARDS))
    assert all(list_owners()[shard] == member.owner_id for member in members for shard in get_shards(member))


def test_a_new_node_claims_no_shard_before_it_is_released() -> None:
    first = join_node()
    settle(first)
    second = join_node()
    second.rebalance(SHARDS)
    assert get_shards(second) == set()

    settle(first, second)

    assert get_shards(second)
    assert get_shards(first) | get_shards(second) == set(range(SHARDS))


def test_when_a_node_leaves_the_others_claim_its_shards_and_keep_their_own() -> None:
    members = [join_node() for _ in range(3)]
    settle(*members)
    gone, *rest = members
    before = [get_shards(member) for member in rest]

    gone.hand_over(in_flight=0)
    gone.leave()
    settle(*rest)

    assert get_shards(rest[0]) | get_shards(rest[1]) == set(range(SHARDS))
    assert all(kept <= get_shards(member) for kept, member in zip(before, rest, strict=True))


def test_a_node_that_hands_over_frees_its_shards_and_may_finish_its_attempts() -> None:
    members = [join_node(), join_node()]
    settle(*members)
    leaving, stays = members
    leaving.hand_over(in_flight=3)

    settle(leaving, stays)

    assert get_shards(leaving) == set()
    assert get_shards(stays) == set(range(SHARDS))
    assert Node.objects.get(pk=leaving.owner_id).in_flight == 3
    with transaction.atomic():
        leaving.fence()


def test_a_node_whose_lease_has_ended_claims_no_shard() -> None:
    member = join_node()
    with pin_time(add_to_noon(60)):
        member.rebalance(SHARDS)
    assert get_shards(member) == set()


def test_more_shards_are_claimed_when_a_larger_namespace_needs_them() -> None:
    member = join_node()
    member.rebalance(4)
    member.rebalance(SHARDS)
    assert get_shards(member) == set(range(SHARDS))


@pytest.mark.parametrize("steps", [[4], [4, 4], [4, 9], [9, 4], [1, 2, 1500]], ids=str)
def test_shard_rows_are_dense_and_never_fewer_than_before(steps: list[int]) -> None:
    for num_shards in steps:
        ensure_shards(num_shards)
    shards = TimerShard.objects.order_by("shard_id").values_list("shard_id", flat=True)
    assert list(shards) == list(range(max(steps)))
    assert set(list_owners().values()) == {None}

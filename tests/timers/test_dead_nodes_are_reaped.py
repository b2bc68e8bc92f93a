"""A dead node is reaped by another: its row is deleted, its shards are freed, and it is fenced."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, wait
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction

from eventservice.db.leases import Fenced, Leases
from eventservice.db.now import pin_time
from tests.timers.support import NOON, join_node
from timers.membership import NODE_LEASE, SHARD_LEASE, list_live_node_ids, list_node_ids, reap_dead_node
from timers.models import Node, NodeRole, TimerShard

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]

JUST_ALIVE = NOON + NODE_LEASE
DEAD = JUST_ALIVE + timedelta(milliseconds=1)


def test_a_node_is_alive_to_the_last_instant_of_its_lease() -> None:
    join_node()
    with pin_time(JUST_ALIVE):
        assert reap_dead_node() is None
        assert len(list_live_node_ids(NodeRole.ENGINE)) == 1
    assert [node.is_alive(JUST_ALIVE) for node in Node.objects.all()] == [True]


def test_a_node_is_dead_as_soon_as_its_lease_has_ended() -> None:
    node = Node.objects.get(pk=join_node().owner_id)
    assert not node.is_alive(DEAD)
    with pin_time(DEAD):
        assert list_live_node_ids(NodeRole.ENGINE) == frozenset()
        assert list(Node.objects.dead()) == [node]


def test_the_log_names_the_process_and_its_role(caplog: pytest.LogCaptureFixture) -> None:
    node = Node.objects.get(pk=join_node().owner_id)
    with pin_time(DEAD):
        reap_dead_node()
    (line,) = [record.msg for record in caplog.records if "node_reaped" in record.getMessage()]
    assert isinstance(line, dict)
    assert (line["node"], line["role"]) == (str(node.owner_id), "engine")
    assert (line["pid"], line["hostname"]) == (node.process_id, node.hostname)


def test_reaping_deletes_the_row_and_frees_the_shards_under_a_new_version() -> None:
    member = join_node()
    member.rebalance(4)
    with pin_time(DEAD):
        assert reap_dead_node() == member.owner_id
        assert reap_dead_node() is None
    assert list_node_ids() == []
    rows = TimerShard.objects.values_list("owner_id", "lease_until", "version").distinct()
    assert list(rows) == [(None, None, 2)]


def test_only_dead_nodes_are_reaped_one_at_a_time() -> None:
    dead = {join_node().owner_id for _ in range(2)}
    with pin_time(DEAD):
        alive = join_node()
        alive.rebalance(4)
        assert {reap_dead_node(), reap_dead_node()} == dead
        assert reap_dead_node() is None
    assert list_node_ids() == [alive.owner_id]
    assert set(TimerShard.objects.values_list("owner_id", flat=True)) == {alive.owner_id}


def test_a_node_whose_own_lease_has_ended_declares_no_node_dead() -> None:
    member, dead = join_node(), join_node()
    with pin_time(DEAD):
        assert reap_dead_node(by=member.owner_id) is None
        member.heartbeat(0)
        assert reap_dead_node(by=member.owner_id) == dead.owner_id


def test_a_late_heartbeat_says_that_others_may_be_late_too() -> None:
    member = join_node()
    with pin_time(NOON + NODE_LEASE / 2):
        assert not member.heartbeat(0)
    with pin_time(NOON + NODE_LEASE + timedelta(milliseconds=1)):
        assert member.heartbeat(0)
        assert not member.heartbeat(0)


def test_a_reaped_node_is_fenced_everywhere() -> None:
    member = join_node()
    member.rebalance(4)
    with transaction.atomic():
        member.fence()
        member.leases.fence([0, 1, 2, 3])
    with pin_time(DEAD):
        reap_dead_node()
        for refused in (member.fence, lambda: member.leases.fence([0]), lambda: member.heartbeat(0)):
            with pytest.raises(Fenced), transaction.atomic():
                refused()
        assert member.leases.renew() == {0, 1, 2, 3}


def test_a_reaped_node_claims_no_shard() -> None:
    member = join_node()
    with pin_time(DEAD):
        reap_dead_node()
        member.rebalance(4)
    assert not TimerShard.objects.exclude(owner_id=None).exists()


@pytest.mark.django_db(transaction=True)
def test_a_node_that_is_reaped_while_it_claims_shards_keeps_none(
    elsewhere: Callable[..., Future[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was frozen between two claims. Else nobody would look after its shards before their leases end."""
    member, claim = join_node(), Leases.claim
    reaped: list[Future[Any]] = []

    def reap() -> Any:
        with pin_time(DEAD):
            return reap_dead_node()

    def claim_and_reap(leases: Leases, key: int) -> bool:
        won = claim(leases, key)
        if not reaped:
            reaped.append(elsewhere(reap))
            # It waits for the end of the transaction on SQLite, and returns at once on the others.
            wait(reaped, timeout=2)
        return won

    monkeypatch.setattr(Leases, "claim", claim_and_reap)
    member.rebalance(4)
    reaped[0].result(30)
    reap()
    assert list_node_ids() == []
    assert not TimerShard.objects.exclude(owner_id=None).exists()


def test_the_shards_of_a_dead_node_are_not_claimed_before_it_is_reaped() -> None:
    assert SHARD_LEASE > 2 * NODE_LEASE
    first = join_node()
    first.rebalance(4)
    with pin_time(DEAD):
        second = join_node()
        second.rebalance(4)
        assert second.leases.held == {}
        reap_dead_node()
        second.rebalance(4)
        assert set(second.leases.held) == {0, 1, 2, 3}


@pytest.mark.django_db(transaction=True)
def test_one_of_many_nodes_that_find_a_dead_node_reaps_it(elsewhere: Callable[..., Future[Any]]) -> None:
    member = join_node()

    def reap() -> Any:
        with pin_time(DEAD):
            return reap_dead_node()

    reaped = [future.result(30) for future in [elsewhere(reap) for _ in range(6)]]
    assert sorted(map(str, reaped)) == sorted([str(member.owner_id), *["None"] * 5])


def test_a_node_that_died_before_the_clock_was_set_back_is_reaped_like_any_other() -> None:
    with pin_time(NOON + timedelta(minutes=1)):
        dead = join_node()
    assert [node.is_alive(NOON) for node in Node.objects.all()] == [False]
    assert list_live_node_ids(NodeRole.ENGINE) == frozenset()
    other = join_node()
    assert reap_dead_node(by=other.owner_id) is None
    with pin_time(JUST_ALIVE):
        other.heartbeat(0)
        assert reap_dead_node(by=other.owner_id) is None
    with pin_time(DEAD):
        assert reap_dead_node(by=other.owner_id) == dead.owner_id


def test_a_node_that_lives_when_the_clock_is_set_back_is_not_reaped() -> None:
    with pin_time(NOON + timedelta(minutes=1)):
        alive, other = join_node(), join_node()
    assert reap_dead_node(by=other.owner_id) is None
    for seconds in range(0, 20, 2):
        with pin_time(NOON + timedelta(seconds=seconds)):
            for node in (alive, other):
                node.heartbeat(0)
            assert reap_dead_node(by=other.owner_id) is None

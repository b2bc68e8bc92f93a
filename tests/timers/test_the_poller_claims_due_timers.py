"""A pass claims the due timers of the node's own shards: none early, none of other nodes, and each once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from datetime import datetime
from typing import Any

import pytest
from django.db import transaction
from django.db.models import F

from eventservice.db.leases import Fenced
from eventservice.db.now import pin_time
from eventservice.kernel.ids import new_id
from eventservice.tenants.directory import list_tenant_ids
from tests.timers.support import add_to_noon, call_ids, claim_due, create_poller, create_timers, find_row
from timers.models import TimerSchedule, TimerShard, TimerState
from timers.poller import Poller

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]

TENANT = new_id()


def test_a_due_timer_is_claimed_once() -> None:
    due = create_timers(TENANT, 3)
    poller = create_poller()
    assert call_ids(claim_due(poller)) == call_ids(due)
    assert claim_due(poller) == []


def test_nothing_is_claimed_early() -> None:
    timer = create_timers(TENANT, due_at=add_to_noon(0.001))[0]
    poller = create_poller()
    assert claim_due(poller) == []
    with pin_time(add_to_noon(0.001)):
        assert call_ids(claim_due(poller)) == {timer.service_call_id}


def test_a_claimed_timer_has_all_that_a_start_needs() -> None:
    timer = create_timers(TENANT, due_at=add_to_noon(-5), shard_id=2, host="a.test")[0]
    (due,) = claim_due(create_poller())
    assert (due.tenant_id, due.service_call_id) == (TENANT, timer.service_call_id)
    assert (due.due_at, due.shard_id, due.host, due.correlation_id) == (
        add_to_noon(-5), 2, "a.test", timer.correlation_id,
    )  # fmt: skip


def test_claimed_timers_are_reached_under_the_version_of_their_shard(at_noon: datetime) -> None:
    TimerShard.objects.bulk_create([TimerShard(shard_id=n, version=10 * n) for n in range(4)])
    timers = [create_timers(TENANT, shard_id=n)[0] for n in range(4)]
    claim_due(create_poller())
    for number, timer in enumerate(timers):
        row = find_row(timer)
        assert row is not None
        assert (row.state, row.reached_at, row.claim_version) == ("Reached", at_noon, 10 * number + 1)


def test_the_shards_of_other_nodes_are_not_touched() -> None:
    ours, theirs = create_timers(TENANT, shard_id=1), create_timers(TENANT, shard_id=2)
    poller = create_poller()
    poller.leases.release([2])
    assert call_ids(claim_due(poller)) == call_ids(ours)
    assert TimerSchedule.objects.for_tenant(TENANT).get(state="Scheduled") == theirs[0]


def test_without_shards_there_is_nothing_to_claim() -> None:
    create_timers(TENANT)
    poller = create_poller()
    poller.leases.release(range(4))
    assert claim_due(poller) == []
    assert poller.seconds_until_due() is None


def test_no_more_timers_are_claimed_than_the_limit() -> None:
    create_timers(TENANT, 5)
    poller = create_poller()
    assert [len(claim_due(poller, limit)) for limit in (0, 2, 2, 2)] == [0, 2, 2, 1]


def test_a_shard_that_was_lost_in_the_meantime_fences_the_whole_pass() -> None:
    timers = create_timers(TENANT, shard_id=1) + create_timers(TENANT, shard_id=2)
    poller = create_poller()
    TimerShard.objects.filter(pk=2).update(version=F("version") + 1, owner_id=new_id())

    with pytest.raises(Fenced):
        claim_due(poller)

    assert not TimerSchedule.objects.for_tenant(TENANT).filter(state="Reached").exists()
    poller.leases.renew()
    assert call_ids(claim_due(poller)) == {timers[0].service_call_id}


def test_a_timer_that_is_not_admitted_stays_scheduled() -> None:
    timers = create_timers(TENANT, 4)
    refused = timers[0].service_call_id
    poller = create_poller()
    with transaction.atomic():
        due = poller.claim_due(10, admit=lambda timer: timer.service_call_id != refused)
    assert call_ids(due) == call_ids(timers) - {refused}
    assert call_ids(claim_due(poller)) == {refused}


@pytest.mark.parametrize(
    ("due", "seconds"), [([5.0, 60.0], 5.0), ([-2.5], -2.5), ([0.0], 0.0), ([], None)], ids=str
)
def test_it_knows_how_long_until_the_next_is_due(due: list[float], seconds: float | None) -> None:
    for shard_id, when in enumerate(due):
        create_timers(TENANT, due_at=add_to_noon(when), shard_id=shard_id)
    create_timers(TENANT, due_at=add_to_noon(-100), state="Reached", reached_at=add_to_noon(-99))
    assert create_poller().seconds_until_due() == seconds


def test_timers_in_the_shards_of_other_nodes_are_not_waited_for() -> None:
    create_timers(TENANT, due_at=add_to_noon(5), shard_id=0)
    create_timers(TENANT, due_at=add_to_noon(60), shard_id=1)
    poller = create_poller()
    poller.leases.release([0])
    assert poller.seconds_until_due() == 60


@pytest.mark.django_db(transaction=True)
def test_two_pollers_of_the_same_shards_claim_each_timer_once(elsewhere: Callable[..., Future[Any]]) -> None:
    """Two pollers should never share shards. If they do, no timer is claimed by both."""
    timers = create_timers(TENANT, 200)
    leases = create_poller().leases
    futures = [elsewhere(claim_until_none_is_left, Poller(leases, list_tenant_ids)) for _ in range(3)]
    taken = [service_call_id for future in futures for service_call_id in future.result(60)]
    assert sorted(taken) == sorted(call_ids(timers))


def claim_until_none_is_left(poller: Poller) -> list[Any]:
    """Claim until no timer is left: a pass finds nothing, too, while the others hold locks on the rest."""
    taken: list[Any] = []
    waiting = TimerSchedule.across_tenants.filter(state=TimerState.SCHEDULED)
    with pin_time(add_to_noon(1)):
        while waiting.exists():
            taken += [timer.service_call_id for timer in claim_due(poller, 20)]
    return taken

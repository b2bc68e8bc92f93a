"""A pass takes what is due in the node's own shards: never early, never another's, and each timer once."""

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
from tests.timers.support import after, claim, found, ids, polling, stored
from timers.models import TimerSchedule, TimerShard, TimerState
from timers.poller import Poller

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]

TENANT = new_id()


def test_what_is_due_is_taken_once() -> None:
    due = stored(TENANT, 3)
    poller = polling()
    assert ids(claim(poller)) == ids(due)
    assert claim(poller) == []


def test_nothing_is_taken_early() -> None:
    timer = stored(TENANT, due_at=after(0.001))[0]
    poller = polling()
    assert claim(poller) == []
    with pin_time(after(0.001)):
        assert ids(claim(poller)) == {timer.service_call_id}


def test_it_tells_all_that_a_start_needs() -> None:
    timer = stored(TENANT, due_at=after(-5), shard_id=2, host="a.test")[0]
    (due,) = claim(polling())
    assert (due.tenant_id, due.service_call_id) == (TENANT, timer.service_call_id)
    assert (due.due_at, due.shard_id, due.host, due.correlation_id) == (
        after(-5), 2, "a.test", timer.correlation_id,
    )  # fmt: skip


def test_what_is_taken_is_reached_under_the_version_of_its_shard(at_noon: datetime) -> None:
    TimerShard.objects.bulk_create([TimerShard(shard_id=n, version=10 * n) for n in range(4)])
    timers = [stored(TENANT, shard_id=n)[0] for n in range(4)]
    claim(polling())
    for number, timer in enumerate(timers):
        row = found(timer)
        assert row is not None
        assert (row.state, row.reached_at, row.claim_version) == ("Reached", at_noon, 10 * number + 1)


def test_no_other_nodes_shard_is_touched() -> None:
    ours, theirs = stored(TENANT, shard_id=1), stored(TENANT, shard_id=2)
    poller = polling()
    poller.leases.release([2])
    assert ids(claim(poller)) == ids(ours)
    assert TimerSchedule.objects.for_tenant(TENANT).get(state="Scheduled") == theirs[0]


def test_without_shards_there_is_nothing_to_take() -> None:
    stored(TENANT)
    poller = polling()
    poller.leases.release(range(4))
    assert claim(poller) == []
    assert poller.seconds_until_due() is None


def test_no_more_is_taken_than_was_asked_for() -> None:
    stored(TENANT, 5)
    poller = polling()
    assert [len(claim(poller, limit)) for limit in (0, 2, 2, 2)] == [0, 2, 2, 1]


def test_a_shard_that_was_lost_meanwhile_fences_the_whole_pass() -> None:
    timers = stored(TENANT, shard_id=1) + stored(TENANT, shard_id=2)
    poller = polling()
    TimerShard.objects.filter(pk=2).update(version=F("version") + 1, owner_id=new_id())

    with pytest.raises(Fenced):
        claim(poller)

    assert not TimerSchedule.objects.for_tenant(TENANT).filter(state="Reached").exists()
    poller.leases.renew()
    assert ids(claim(poller)) == {timers[0].service_call_id}


def test_what_is_not_admitted_stays_as_it_is() -> None:
    timers = stored(TENANT, 4)
    refused = timers[0].service_call_id
    poller = polling()
    with transaction.atomic():
        due = poller.claim_due(10, admit=lambda timer: timer.service_call_id != refused)
    assert ids(due) == ids(timers) - {refused}
    assert ids(claim(poller)) == {refused}


@pytest.mark.parametrize(
    ("due", "seconds"), [([5.0, 60.0], 5.0), ([-2.5], -2.5), ([0.0], 0.0), ([], None)], ids=str
)
def test_it_knows_how_long_until_the_next_is_due(due: list[float], seconds: float | None) -> None:
    for shard_id, when in enumerate(due):
        stored(TENANT, due_at=after(when), shard_id=shard_id)
    stored(TENANT, due_at=after(-100), state="Reached", reached_at=after(-99))
    assert polling().seconds_until_due() == seconds


def test_of_other_nodes_shards_it_does_not_wait_for_the_next() -> None:
    stored(TENANT, due_at=after(5), shard_id=0)
    stored(TENANT, due_at=after(60), shard_id=1)
    poller = polling()
    poller.leases.release([0])
    assert poller.seconds_until_due() == 60


@pytest.mark.django_db(transaction=True)
def test_two_pollers_of_the_same_shards_take_each_timer_once(elsewhere: Callable[..., Future[Any]]) -> None:
    """They should not be two; but if they are, no timer is reached by both."""
    timers = stored(TENANT, 200)
    leases = polling().leases
    futures = [elsewhere(in_bites, Poller(leases)) for _ in range(3)]
    taken = [service_call_id for future in futures for service_call_id in future.result(60)]
    assert sorted(taken) == sorted(ids(timers))


def in_bites(poller: Poller) -> list[Any]:
    """Until none is left: a pass finds nothing, too, while the others hold what there is."""
    taken: list[Any] = []
    waiting = TimerSchedule.across_tenants.filter(state=TimerState.SCHEDULED)
    with pin_time(after(1)):
        while waiting.exists():
            taken += [timer.service_call_id for timer in claim(poller, 20)]
    return taken

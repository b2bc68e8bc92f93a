"""A writer whose lease another owner has taken writes nothing, even if it does not know that."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime, timedelta

import pytest
from django.db import transaction

from eventservice.db.leases import Fenced, Leases
from eventservice.db.now import pin_time
from eventservice.kernel.ids import new_id
from timers.models import TimerShard

pytestmark = pytest.mark.django_db

LENGTH = timedelta(seconds=10)
Later = Callable[[timedelta], AbstractContextManager[None]]


def build_leases() -> Leases:
    return Leases(TimerShard, new_id(), LENGTH)


@pytest.fixture
def later(at_noon: datetime) -> Later:
    TimerShard.objects.bulk_create([TimerShard(shard_id=key) for key in (1, 2, 3)])
    return lambda passed: pin_time(at_noon + passed)


def test_an_owner_passes_the_fence(later: object) -> None:
    ours = build_leases()
    for key in (1, 2):
        ours.claim(key)
    with transaction.atomic():
        ours.fence([1, 2])
        ours.fence([])


@pytest.mark.parametrize("keys", [[3], [1, 3], [99]], ids=str)
def test_the_fence_stops_a_writer_that_never_owned_the_lease(keys: list[int], later: object) -> None:
    ours = build_leases()
    ours.claim(1)
    with pytest.raises(Fenced), transaction.atomic():
        ours.fence(keys)


def test_the_fence_stops_a_former_owner(later: Later) -> None:
    ours, theirs = build_leases(), build_leases()
    ours.claim(1)
    with later(LENGTH * 2):
        theirs.claim(1)
    assert ours.held == {1: 1}
    with pytest.raises(Fenced), transaction.atomic():
        ours.fence([1])


def test_an_expired_lease_that_nobody_has_claimed_passes_the_fence(
    later: Later,
) -> None:
    ours = build_leases()
    ours.claim(1)
    with later(LENGTH * 2), transaction.atomic():
        ours.fence([1])

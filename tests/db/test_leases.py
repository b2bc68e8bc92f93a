"""A lease has one owner at a time, until it expires by the database's clock."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime, timedelta

import pytest
from django.db import OperationalError, transaction

from eventservice.db.leases import Leases, release_leases
from eventservice.db.now import pin_time
from eventservice.kernel.ids import new_id
from eventservice.kernel.version import get_version
from tests.orchestration.support import database_unavailable
from timers.models import TimerShard

pytestmark = pytest.mark.django_db

LENGTH = timedelta(seconds=10)
Later = Callable[[timedelta], AbstractContextManager[None]]


def build_leases() -> Leases:
    return Leases(TimerShard, new_id(), LENGTH)


def read_row(key: int = 1) -> TimerShard:
    return TimerShard.objects.get(pk=key)


@pytest.fixture
def later(at_noon: datetime) -> Later:
    TimerShard.objects.bulk_create([TimerShard(shard_id=key) for key in (1, 2, 3)])
    return lambda passed: pin_time(at_noon + passed)


def test_a_free_lease_is_claimed_with_a_new_version(at_noon: datetime, later: object) -> None:
    ours = build_leases()
    assert ours.claim(1)
    assert ours.held == {1: 1}
    taken = read_row()
    assert (taken.version, taken.owner_id) == (1, ours.owner_id)
    assert (taken.claimed_at, taken.lease_until, taken.updated_at) == (at_noon, at_noon + LENGTH, at_noon)


@pytest.mark.usefixtures("later")
def test_a_claimed_lease_names_its_owners_process_and_version() -> None:
    ours = build_leases()
    ours.claim(1)
    assert read_row().metadata == {
        "nodeId": str(ours.owner_id),
        "hostname": socket.gethostname(),
        "processId": os.getpid(),
        "serviceVersion": get_version(),
    }


def test_each_change_of_ownership_says_when_it_was_made(at_noon: datetime, later: Later) -> None:
    ours = build_leases()
    ours.claim(1)
    for seconds, change in ((2, ours.renew), (4, lambda: ours.release([1]))):
        with later(timedelta(seconds=seconds)):
            change()
        row = read_row()
        assert row.updated_at == at_noon + timedelta(seconds=seconds)
        assert row.claimed_at == at_noon


def test_a_lease_that_is_taken_away_says_when(at_noon: datetime, later: Later) -> None:
    ours = build_leases()
    ours.claim(1)
    with later(timedelta(seconds=3)):
        release_leases(TimerShard.objects.filter(pk=1))
    row = read_row()
    assert (row.owner_id, row.version, row.updated_at) == (None, 2, at_noon + timedelta(seconds=3))


def test_a_running_lease_is_not_given_to_another_owner(later: Later) -> None:
    ours, theirs = build_leases(), build_leases()
    ours.claim(1)
    with later(LENGTH):  # its last instant
        assert not theirs.claim(1)
    assert theirs.held == {}
    assert read_row().owner_id == ours.owner_id


def test_an_expired_lease_is_given_to_another_owner(later: Later) -> None:
    ours, theirs = build_leases(), build_leases()
    ours.claim(1)
    with later(LENGTH + timedelta(microseconds=1)):
        assert theirs.claim(1)
    assert theirs.held == {1: 2}


def test_nobody_claims_a_lease_that_does_not_exist(later: object) -> None:
    assert not build_leases().claim(99)


def test_a_renewal_extends_every_lease(at_noon: datetime, later: Later) -> None:
    ours = build_leases()
    for key in (1, 2):
        ours.claim(key)
    with later(timedelta(seconds=5)):
        assert ours.renew() == set()
    assert read_row(1).lease_until == read_row(2).lease_until == at_noon + timedelta(seconds=15)
    assert read_row(3).lease_until is None
    assert ours.held == {1: 1, 2: 1}


def test_a_renewal_returns_lost_leases_and_does_not_change_them(later: Later) -> None:
    ours, theirs = build_leases(), build_leases()
    for key in (1, 2):
        ours.claim(key)
    with later(LENGTH * 2):
        theirs.claim(2)
        before = read_row(2).lease_until
        assert ours.renew() == {2}
    assert ours.held == {1: 1}
    assert read_row(2).lease_until == before


def test_a_released_lease_is_free_at_once_under_a_new_version(later: object) -> None:
    ours, theirs = build_leases(), build_leases()
    ours.claim(1)
    ours.release([1, 2])
    assert ours.held == {}
    assert (read_row().owner_id, read_row().lease_until, read_row().version) == (None, None, 2)
    assert theirs.claim(1)
    assert theirs.held == {1: 3}


def test_releasing_a_lost_lease_changes_nothing(later: Later) -> None:
    ours, theirs = build_leases(), build_leases()
    ours.claim(1)
    with later(LENGTH * 2):
        theirs.claim(1)
    ours.release([1])
    assert (read_row().owner_id, read_row().version) == (theirs.owner_id, 2)


def test_a_lease_that_could_not_be_released_is_still_held(later: Later) -> None:
    ours = build_leases()
    ours.claim(1)
    with database_unavailable("UPDATE timer_shards"), pytest.raises(OperationalError), transaction.atomic():
        ours.release([1])
    assert ours.held == {1: 1}
    ours.release([1])
    assert (ours.held, read_row().owner_id) == ({}, None)


def test_a_claim_whose_response_was_lost_is_held_after_the_next_renewal(later: Later) -> None:
    """Its row names this owner, who would otherwise renew it for ever without doing the work."""
    ours = build_leases()
    ours.claim(1)
    ours.held.clear()
    assert ours.renew() == set()
    assert ours.held == {1: 1}


def test_a_lease_from_before_the_clock_was_set_back_expires_unless_it_is_renewed(later: Later) -> None:
    dead, alive, other = build_leases(), build_leases(), build_leases()
    with later(timedelta(days=1)):
        dead.claim(1)
        alive.claim(2)
    other.renew()
    with later(LENGTH):
        assert not other.claim(1)
        assert alive.renew() == set()
    with later(LENGTH + timedelta(milliseconds=1)):
        assert other.claim(1)
        assert not other.claim(2)

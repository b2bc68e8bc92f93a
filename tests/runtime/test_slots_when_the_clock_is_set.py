"""Role leases, chains and schedules when the database's clock is set back or forward."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings as django_settings
from django_q.models import Schedule

from eventservice.db.now import db_now
from eventservice.kernel.ids import new_id
from eventservice.runtime import cluster
from eventservice.runtime.cluster import (
    correct_future_schedules,
    restart_stalled_chains,
    schedule_each_minute,
    start_chains,
)
from eventservice.runtime.models import Slot
from eventservice.runtime.slots import ROLE_LEASE, RoleLease, consume_ticket, slot_name
from tests.database_clock import set_clock_back

pytestmark = pytest.mark.django_db


@pytest.fixture
def slot(settings: Any) -> str:
    settings.SLICE_SECONDS = 0
    start_chains()
    return slot_name("engine")


def test_a_role_whose_holder_died_before_the_clock_was_set_back_is_free_after_one_lease(slot: str) -> None:
    dead, other = RoleLease(new_id()), RoleLease(new_id())
    assert dead.acquire(slot)
    set_clock_back(3600)
    assert not other.acquire(slot)
    set_clock_back(-round(ROLE_LEASE.total_seconds()) - 1)
    other._ends_at.clear()  # so much time has passed
    assert other.acquire(slot)


def test_a_holder_that_lives_keeps_its_role(slot: str) -> None:
    alive, other = RoleLease(new_id()), RoleLease(new_id())
    for seconds in (3600, -7200, 60, -60):
        assert alive.acquire(slot)
        assert not other.acquire(slot)
        set_clock_back(seconds)
        assert not other.acquire(slot)


def test_a_chain_whose_ticket_was_consumed_in_the_future_is_restarted(slot: str) -> None:
    before = Slot.objects.get(name=slot).ticket
    for expected in (before, before + 1, before + 1):
        restart_stalled_chains()
        assert Slot.objects.get(name=slot).ticket == expected
        if expected == before:
            set_clock_back(60)


def test_a_chain_that_is_at_work_when_the_clock_is_set_forward_is_not_restarted(
    slot: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_clock_back(-3600)
    before = Slot.objects.get(name=slot).ticket

    class Playing:
        def run_for(self, seconds: float) -> None:
            assert consume_ticket(slot, before, lambda name, ticket: None)

    monkeypatch.setattr(cluster, "current_worker", Playing)
    restart_stalled_chains()
    assert Slot.objects.get(name=slot).ticket == before + 1


def test_what_runs_each_minute_does_not_wait_for_the_clock_to_catch_up(slot: str) -> None:
    schedule_each_minute()
    set_clock_back(3600)
    correct_future_schedules()
    times = Schedule.objects.filter(cluster=django_settings.Q_CLUSTER["cluster_name"])
    assert {one.next_run <= db_now() for one in times} == {True}


def test_what_is_due_within_the_minute_stays_as_it_is(slot: str) -> None:
    schedule_each_minute()
    Schedule.objects.update(next_run=db_now() + timedelta(seconds=60))
    before = set(Schedule.objects.values_list("next_run", flat=True))
    correct_future_schedules()
    assert set(Schedule.objects.values_list("next_run", flat=True)) == before

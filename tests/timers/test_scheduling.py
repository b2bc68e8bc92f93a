"""One timer a call: scheduling it again moves it, taking it away works while it waits."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from eventservice.kernel.ids import new_id
from tests.timers.support import NOON, after, asked, found, stored
from timers.models import TimerSchedule
from timers.schedule import (
    Timer,
    list_due_timers,
    list_timers_by_correlation,
    rearm,
    schedule,
    unschedule,
    upsert_timers,
)

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]

TENANT, OTHER = new_id(), new_id()


def reached(**given: Any) -> TimerSchedule:
    return stored(TENANT, state="Reached", reached_at=NOON, claim_version=3, **given)[0]


def state_of(timer: object) -> tuple[str, datetime, datetime | None]:
    row = found(timer)
    assert row is not None
    return row.state, row.due_at, row.reached_at


def test_what_is_scheduled_is_stored_as_it_was_asked() -> None:
    timer = asked(TENANT, due_at=after(60))
    schedule([timer], NOON)
    row = found(timer)
    assert row is not None
    assert (
        Timer(row.tenant_id, row.service_call_id, row.correlation_id, row.due_at, row.shard_id, row.host)
        == timer
    )
    assert (row.state, row.registered_at, row.reached_at, row.claim_version) == (
        "Scheduled",
        NOON,
        None,
        None,
    )


def test_to_schedule_nothing_is_no_error() -> None:
    schedule([], NOON)
    upsert_timers([], NOON)
    rearm([])


@pytest.mark.parametrize("times", [1, 3])
def test_the_upsert_makes_one_timer_however_often_it_is_repeated(times: int) -> None:
    timer = asked(TENANT)
    for _ in range(times):
        upsert_timers([timer, asked(TENANT)], NOON)
    assert TimerSchedule.objects.for_tenant(TENANT).filter(service_call_id=timer.service_call_id).count() == 1
    assert state_of(timer) == ("Scheduled", NOON, None)


def test_the_upsert_gives_a_waiting_timer_what_is_new() -> None:
    first = asked(TENANT)
    schedule([first], NOON)
    changed = first._replace(due_at=after(60), host="other.test", correlation_id=new_id())
    upsert_timers([changed], after(1))
    row = found(first)
    assert row is not None
    assert (row.due_at, row.host, row.correlation_id) == (after(60), "other.test", changed.correlation_id)
    assert (row.registered_at, row.shard_id) == (after(1), 3)


def test_the_upsert_makes_a_reached_timer_wait_again() -> None:
    row = reached()
    upsert_timers([asked(TENANT, service_call_id=row.service_call_id, due_at=after(5))], NOON)
    assert state_of(row) == ("Scheduled", after(5), None)


def test_the_upsert_leaves_the_other_tenants_timer_alone() -> None:
    ours = asked(TENANT)
    theirs = asked(OTHER)
    schedule([ours, theirs], NOON)
    upsert_timers([ours._replace(due_at=after(60))], NOON)
    assert state_of(theirs) == ("Scheduled", NOON, None)


def test_rearming_moves_waiting_and_reached_timers() -> None:
    waiting, done = stored(TENANT)[0], reached()
    rearm([(TENANT, timer.service_call_id, after(9)) for timer in (waiting, done)])
    assert state_of(waiting) == state_of(done) == ("Scheduled", after(9), None)


def test_rearming_makes_no_timer_and_touches_no_other_tenants() -> None:
    theirs = stored(OTHER)[0]
    rearm([(TENANT, theirs.service_call_id, after(9)), (TENANT, new_id(), after(9))])
    assert state_of(theirs) == ("Scheduled", NOON, None)
    assert TimerSchedule.across_tenants.count() == 1


def test_a_waiting_timer_can_be_taken_away() -> None:
    waiting, other = stored(TENANT, 2)
    unschedule(TENANT, waiting.service_call_id)
    assert found(waiting) is None
    assert found(other) is not None


def test_a_reached_timer_and_anothers_cannot() -> None:
    done, theirs = reached(), stored(OTHER)[0]
    unschedule(TENANT, done.service_call_id)
    unschedule(TENANT, theirs.service_call_id)
    assert found(done) is not None
    assert found(theirs) is not None


def test_a_correlation_is_traced_through_all_tenants_and_states() -> None:
    correlation_id = new_id()
    ours = stored(TENANT, due_at=after(2), correlation_id=correlation_id)
    theirs = stored(OTHER, due_at=after(1), correlation_id=correlation_id)
    done = reached(correlation_id=correlation_id)
    stored(TENANT)
    assert list_timers_by_correlation(correlation_id) == [done, *theirs, *ours]


def test_what_is_due_of_a_tenant_is_its_own_due_and_waiting_the_longest_due_first() -> None:
    late, now = stored(TENANT, due_at=after(-9))[0], stored(TENANT)[0]
    stored(TENANT, due_at=after(0.001))
    reached(due_at=after(-99))
    stored(OTHER, due_at=after(-99))
    assert list_due_timers(TENANT) == [late, now]
    assert list_due_timers(TENANT, limit=1) == [late]

"""A call has one timer: the upsert overwrites it, and it can be deleted until it is reached."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from eventservice.kernel.ids import new_id
from tests.timers.support import NOON, add_to_noon, build_timer, create_timers, find_row
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


def create_reached_timer(**given: Any) -> TimerSchedule:
    return create_timers(TENANT, state="Reached", reached_at=NOON, claim_version=3, **given)[0]


def get_state(timer: object) -> tuple[str, datetime, datetime | None]:
    row = find_row(timer)
    assert row is not None
    return row.state, row.due_at, row.reached_at


def test_a_timer_is_stored_as_it_was_scheduled() -> None:
    timer = build_timer(TENANT, due_at=add_to_noon(60))
    schedule([timer], NOON)
    row = find_row(timer)
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


def test_scheduling_nothing_is_no_error() -> None:
    schedule([], NOON)
    upsert_timers([], NOON)
    rearm([])


@pytest.mark.parametrize("times", [1, 3])
def test_the_upsert_creates_one_timer_however_often_it_is_repeated(times: int) -> None:
    timer = build_timer(TENANT)
    for _ in range(times):
        upsert_timers([timer, build_timer(TENANT)], NOON)
    assert TimerSchedule.objects.for_tenant(TENANT).filter(service_call_id=timer.service_call_id).count() == 1
    assert get_state(timer) == ("Scheduled", NOON, None)


def test_the_upsert_overwrites_a_scheduled_timer() -> None:
    first = build_timer(TENANT)
    schedule([first], NOON)
    changed = first._replace(due_at=add_to_noon(60), host="other.test", correlation_id=new_id())
    upsert_timers([changed], add_to_noon(1))
    row = find_row(first)
    assert row is not None
    assert (row.due_at, row.host, row.correlation_id) == (
        add_to_noon(60),
        "other.test",
        changed.correlation_id,
    )
    assert (row.registered_at, row.shard_id) == (add_to_noon(1), 3)


def test_the_upsert_schedules_a_reached_timer_again() -> None:
    row = create_reached_timer()
    upsert_timers([build_timer(TENANT, service_call_id=row.service_call_id, due_at=add_to_noon(5))], NOON)
    assert get_state(row) == ("Scheduled", add_to_noon(5), None)


def test_the_upsert_does_not_change_another_tenants_timer() -> None:
    ours = build_timer(TENANT)
    theirs = build_timer(OTHER)
    schedule([ours, theirs], NOON)
    upsert_timers([ours._replace(due_at=add_to_noon(60))], NOON)
    assert get_state(theirs) == ("Scheduled", NOON, None)


def test_rearming_moves_scheduled_and_reached_timers() -> None:
    waiting, done = create_timers(TENANT)[0], create_reached_timer()
    rearm([(TENANT, timer.service_call_id, add_to_noon(9)) for timer in (waiting, done)])
    assert get_state(waiting) == get_state(done) == ("Scheduled", add_to_noon(9), None)


def test_rearming_creates_no_timer_and_touches_no_other_tenants() -> None:
    theirs = create_timers(OTHER)[0]
    rearm([(TENANT, theirs.service_call_id, add_to_noon(9)), (TENANT, new_id(), add_to_noon(9))])
    assert get_state(theirs) == ("Scheduled", NOON, None)
    assert TimerSchedule.across_tenants.count() == 1


def test_a_scheduled_timer_can_be_deleted() -> None:
    waiting, other = create_timers(TENANT, 2)
    unschedule(TENANT, waiting.service_call_id)
    assert find_row(waiting) is None
    assert find_row(other) is not None


def test_a_reached_timer_and_another_tenants_timer_cannot_be_deleted() -> None:
    done, theirs = create_reached_timer(), create_timers(OTHER)[0]
    unschedule(TENANT, done.service_call_id)
    unschedule(TENANT, theirs.service_call_id)
    assert find_row(done) is not None
    assert find_row(theirs) is not None


def test_a_correlation_is_traced_through_all_tenants_and_states() -> None:
    correlation_id = new_id()
    ours = create_timers(TENANT, due_at=add_to_noon(2), correlation_id=correlation_id)
    theirs = create_timers(OTHER, due_at=add_to_noon(1), correlation_id=correlation_id)
    done = create_reached_timer(correlation_id=correlation_id)
    create_timers(TENANT)
    assert list_timers_by_correlation(correlation_id) == [done, *theirs, *ours]


def test_due_timers_of_a_tenant_are_listed_the_longest_due_first() -> None:
    late, now = create_timers(TENANT, due_at=add_to_noon(-9))[0], create_timers(TENANT)[0]
    create_timers(TENANT, due_at=add_to_noon(0.001))
    create_reached_timer(due_at=add_to_noon(-99))
    create_timers(OTHER, due_at=add_to_noon(-99))
    assert list_due_timers(TENANT) == [late, now]
    assert list_due_timers(TENANT, limit=1) == [late]

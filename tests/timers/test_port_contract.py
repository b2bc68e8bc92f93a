"""Every implementation of the port to the timers' tables keeps the contract of timers.port.TimerPersistencePort."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from datetime import datetime
from typing import Any
from unittest import mock
from uuid import UUID

import pytest
from django.db import IntegrityError, transaction

from eventservice.db.bulk import LostRace, to_json
from eventservice.db.dialects import get_dialect
from eventservice.kernel.ids import new_id
from orchestration.models import ServiceCall
from tests.factories import ServiceCallFactory, TenantFactory, TimerFactory
from tests.timers.support import NOON, add_to_noon, build_timer, call_ids, create_timers, find_row
from timers import persistence
from timers.models import TimerSchedule, TimerShard, TimerState
from timers.persistence import SqlTimerPersistence
from timers.port import HeldBack, NewDueTime, PollScope, Timer, TimerEntry, TimerPersistencePort

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]

# Ids sort by their time, so the first tenant is first in every list.
TENANT, OTHER = new_id(), new_id()
IMPLEMENTATIONS = [SqlTimerPersistence]
VERSIONS = dict.fromkeys(range(16), 7)


@pytest.fixture(params=IMPLEMENTATIONS, ids=lambda implementation: implementation.__name__)
def port(request: pytest.FixtureRequest) -> TimerPersistencePort:
    implementation: Callable[[], TimerPersistencePort] = request.param
    return implementation()


def create_reached_timer(**given: Any) -> TimerSchedule:
    return create_timers(TENANT, state="Reached", reached_at=NOON, claim_version=3, **given)[0]


def create_twins() -> tuple[TimerSchedule, TimerSchedule]:
    """Create timers of two tenants whose calls have the same id."""
    ours, theirs = (_create_timer(tenant, UUID(int=66)) for tenant in (TENANT, OTHER))
    return ours, theirs


def _create_timer(tenant_id: UUID, service_call_id: UUID) -> TimerSchedule:
    TenantFactory(tenant_id=tenant_id)
    ServiceCallFactory(tenant_id=tenant_id, service_call_id=service_call_id)
    made: TimerSchedule = TimerFactory(
        tenant_id=tenant_id, service_call_id=service_call_id, correlation_id=UUID(int=67), due_at=NOON
    )
    return made


def get_state(timer: object) -> tuple[str, datetime, datetime | None]:
    row = find_row(timer)
    assert row is not None
    return row.state, row.due_at, row.reached_at


def get_values(timer: object) -> dict[str, Any]:
    return {name: value for name, value in vars(find_row(timer)).items() if name != "_state"}


def key(timer: Any) -> tuple[UUID, UUID]:
    return timer.tenant_id, timer.service_call_id


# --- scheduling -----------------------------------------------------------------------------------------------


def test_a_timer_is_stored_as_it_was_scheduled(port: TimerPersistencePort) -> None:
    timer = build_timer(TENANT, due_at=add_to_noon(60), request_bytes=99)
    port.insert_timers([timer], NOON)
    row = find_row(timer)
    assert row is not None
    assert timer == Timer(
        *key(row), row.correlation_id, row.due_at, row.shard_id, row.host, row.request_bytes
    )
    assert (row.state, row.registered_at, row.reached_at, row.claim_version) == (
        "Scheduled",
        NOON,
        None,
        None,
    )


def test_writing_nothing_is_no_error(port: TimerPersistencePort) -> None:
    port.insert_timers([], NOON)
    port.rearm_timers([], NOON)
    port.mark_fired([], NOON, {})


def test_a_call_has_one_timer(port: TimerPersistencePort) -> None:
    timer = build_timer(TENANT)
    port.insert_timers([timer], NOON)
    with pytest.raises(IntegrityError), transaction.atomic():
        port.insert_timers([timer], NOON)


def test_a_timer_needs_a_call_of_its_tenant(port: TimerPersistencePort) -> None:
    timer = build_timer(TENANT)
    with pytest.raises(IntegrityError), transaction.atomic():
        port.insert_timers([timer._replace(tenant_id=OTHER)], NOON)


@pytest.mark.parametrize("times", [1, 3])
def test_a_timer_that_is_scheduled_repeatedly_exists_once(port: TimerPersistencePort, times: int) -> None:
    timer = build_timer(TENANT)
    for _ in range(times):
        port.schedule_timer(timer, NOON)
    assert TimerSchedule.objects.for_tenant(TENANT).filter(service_call_id=timer.service_call_id).count() == 1
    assert get_state(timer) == ("Scheduled", NOON, None)


def test_the_upsert_overwrites_a_scheduled_timer(port: TimerPersistencePort) -> None:
    first = build_timer(TENANT)
    port.insert_timers([first], NOON)
    changed = first._replace(
        due_at=add_to_noon(60), host="other.test", correlation_id=new_id(), request_bytes=5
    )
    port.schedule_timer(changed, add_to_noon(1))
    row = find_row(first)
    assert row is not None
    assert (row.due_at, row.host, row.correlation_id, row.request_bytes) == (
        add_to_noon(60),
        "other.test",
        changed.correlation_id,
        5,
    )
    assert (row.registered_at, row.shard_id) == (add_to_noon(1), 3)


def test_the_upsert_schedules_a_reached_timer_again(port: TimerPersistencePort) -> None:
    row = create_reached_timer()
    port.schedule_timer(build_timer(TENANT, service_call_id=row.service_call_id, due_at=add_to_noon(5)), NOON)
    assert get_state(row) == ("Scheduled", add_to_noon(5), None)


def test_rearming_moves_scheduled_and_reached_timers(port: TimerPersistencePort) -> None:
    waiting, done = create_timers(TENANT)[0], create_reached_timer()
    port.rearm_timers([NewDueTime(*key(timer), add_to_noon(9)) for timer in (waiting, done)], add_to_noon(1))
    assert get_state(waiting) == get_state(done) == ("Scheduled", add_to_noon(9), None)
    for timer in (waiting, done):
        assert get_values(timer)["registered_at"] == add_to_noon(1)


def test_rearming_creates_no_timer(port: TimerPersistencePort) -> None:
    port.rearm_timers([NewDueTime(TENANT, new_id(), add_to_noon(9))], NOON)
    assert not TimerSchedule.across_tenants.exists()


def test_a_scheduled_timer_can_be_deleted(port: TimerPersistencePort) -> None:
    waiting, other = create_timers(TENANT, 2)
    port.unschedule_timer(*key(waiting))
    assert find_row(waiting) is None
    assert find_row(other) is not None


def test_a_reached_timer_cannot_be_deleted(port: TimerPersistencePort) -> None:
    done = create_reached_timer()
    port.unschedule_timer(*key(done))
    assert find_row(done) is not None


def test_a_timer_is_deleted_with_its_call(port: TimerPersistencePort) -> None:
    ours, theirs = create_twins()
    ServiceCall.objects.for_tenant(TENANT).filter(service_call_id=ours.service_call_id)._raw_delete("default")
    assert port.find_timer(*key(ours)) is None
    assert port.find_timer(*key(theirs)) is not None


# --- tenants --------------------------------------------------------------------------------------------------

WRITES: dict[str, Callable[[TimerPersistencePort, Timer], Any]] = {
    "schedule": lambda port, timer: port.schedule_timer(timer._replace(due_at=add_to_noon(60)), NOON),
    "rearm": lambda port, timer: port.rearm_timers([NewDueTime(*key(timer), add_to_noon(60))], NOON),
    "unschedule": lambda port, timer: port.unschedule_timer(*key(timer)),
    "mark": lambda port, timer: port.mark_fired([timer], NOON, VERSIONS),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_no_write_changes_the_timer_of_another_tenant_with_the_same_id(
    port: TimerPersistencePort, write: Callable[[TimerPersistencePort, Timer], Any]
) -> None:
    ours, theirs = create_twins()
    before = get_values(theirs)
    timer = Timer(*key(ours), ours.correlation_id, ours.due_at, ours.shard_id, ours.host)
    write(port, timer)
    assert get_values(theirs) == before
    assert find_row(ours) is None or get_values(ours) != before | {"tenant_id": TENANT}


READS: dict[str, Callable[[TimerPersistencePort, TimerSchedule], Any]] = {
    "find_timer": lambda port, row: port.find_timer(*key(row)),
    "find_due": lambda port, row: port.find_due(row.tenant_id, NOON, 100),
    "find_due, in shards": lambda port, row: port.find_due(row.tenant_id, NOON, 100, PollScope([0])),
    "find_due_timer": lambda port, row: port.find_due_timer(*key(row), NOON),
    "find_by_correlation": lambda port, row: port.find_by_correlation(row.tenant_id, row.correlation_id, 100),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_read_returns_the_timers_of_one_tenant(
    port: TimerPersistencePort, read: Callable[[TimerPersistencePort, TimerSchedule], Any]
) -> None:
    for row in create_twins():
        found = read(port, row)
        (one,) = found if isinstance(found, list) else [found]
        assert key(one) == key(row)
    missing = TimerSchedule(tenant_id=new_id(), service_call_id=UUID(int=66), correlation_id=UUID(int=67))
    assert not read(port, missing)


# --- reading --------------------------------------------------------------------------------------------------


def test_an_entry_shows_the_history_of_a_timer(port: TimerPersistencePort) -> None:
    row = create_reached_timer(due_at=add_to_noon(-9), registered_at=add_to_noon(-60), request_bytes=7)
    assert port.find_timer(*key(row)) == TimerEntry(
        *key(row), row.correlation_id, add_to_noon(-9), add_to_noon(-60), NOON, TimerState.REACHED, 7
    )
    (waiting,) = create_timers(TENANT)
    entry = port.find_timer(*key(waiting))
    assert entry is not None
    assert (entry.state, entry.reached_at) == ("Scheduled", None)


def test_a_correlation_is_traced_in_the_order_of_due_times(port: TimerPersistencePort) -> None:
    correlation_id = new_id()
    late = create_timers(TENANT, due_at=add_to_noon(2), correlation_id=correlation_id)[0]
    create_timers(OTHER, due_at=add_to_noon(1), correlation_id=correlation_id)
    done = create_reached_timer(correlation_id=correlation_id)
    create_timers(TENANT)
    of_tenant = port.find_by_correlation(TENANT, correlation_id, 100)
    assert [entry.service_call_id for entry in of_tenant] == [done.service_call_id, late.service_call_id]
    assert port.find_by_correlation(TENANT, correlation_id, 1) == of_tenant[:1]


def test_due_timers_of_a_tenant_are_found_the_longest_due_first(port: TimerPersistencePort) -> None:
    late, now = create_timers(TENANT, due_at=add_to_noon(-9))[0], create_timers(TENANT, shard_id=5)[0]
    create_timers(TENANT, due_at=add_to_noon(0.001))
    create_reached_timer(due_at=add_to_noon(-99))
    create_timers(OTHER, due_at=add_to_noon(-99))
    assert list(map(key, port.find_due(TENANT, NOON, 100))) == [key(late), key(now)]
    assert list(map(key, port.find_due(TENANT, NOON, 1))) == [key(late)]
    assert list(map(key, port.find_due(TENANT, add_to_noon(-1), 100))) == [key(late)]
    assert port.find_due(TENANT, add_to_noon(-10), 100) == []


def test_a_due_timer_has_all_that_a_start_needs(port: TimerPersistencePort) -> None:
    timer = build_timer(TENANT, request_bytes=9)
    port.insert_timers([timer], NOON)
    assert port.find_due(TENANT, NOON, 1) == [timer]
    assert port.find_due_timer(*key(timer), NOON) == timer
    assert port.find_due_in_shards(NOON, 1, PollScope([3])) == [timer]


SCOPES: dict[str, tuple[PollScope, set[str]]] = {
    "both shards": (PollScope([1, 2]), {"a", "b"}),
    "one shard": (PollScope([2]), {"b"}),
    "what became due since": (PollScope([1, 2], since=add_to_noon(-5)), {"b"}),
    "a host held back": (PollScope([1, 2], HeldBack(hosts=["a"])), {"b"}),
    "a tenant's host held back": (
        PollScope([1, 2], HeldBack(hosts_by_tenant={TENANT: ["b"], OTHER: ["a"]})),
        {"a"},
    ),
    "the tenant held back": (PollScope([1, 2], HeldBack(tenants=[TENANT])), set()),
    "another tenant held back": (PollScope([1, 2], HeldBack(tenants=[OTHER])), {"a", "b"}),
}


@pytest.mark.parametrize(("scope", "found"), SCOPES.values(), ids=SCOPES)
def test_a_scope_restricts_what_is_found(
    port: TimerPersistencePort, scope: PollScope, found: set[str]
) -> None:
    create_timers(TENANT, shard_id=1, host="a", due_at=add_to_noon(-9))
    create_timers(TENANT, shard_id=2, host="b")
    assert {timer.host for timer in port.find_due(TENANT, NOON, 100, scope)} == found
    assert {timer.host for timer in port.find_due_in_shards(NOON, 100, scope)} == found


def test_the_engines_poll_finds_the_due_timers_of_all_tenants_in_its_shards(
    port: TimerPersistencePort,
) -> None:
    ours, theirs = create_timers(TENANT, 3, shard_id=1), create_timers(OTHER, 3, shard_id=2)
    create_timers(OTHER, shard_id=3)
    create_timers(OTHER, due_at=add_to_noon(1), shard_id=1)
    create_reached_timer(shard_id=1)
    scope = PollScope([1, 2])
    assert call_ids(port.find_due_in_shards(NOON, 100, scope)) == call_ids(ours + theirs)
    assert len(port.find_due_in_shards(NOON, 4, scope)) == 4


def test_tenants_with_due_timers_are_found_in_the_order_of_their_ids(port: TimerPersistencePort) -> None:
    idle, done, ours, theirs = (UUID(int=number) for number in (3, 5, 8, 13))
    create_timers(theirs, 3, due_at=add_to_noon(-60))
    create_timers(theirs, 2, due_at=add_to_noon(60))
    create_timers(ours, 2)
    create_timers(done, state="Reached", reached_at=NOON)
    create_timers(idle, due_at=add_to_noon(60))
    asked = [theirs, new_id(), done, ours, idle]
    assert port.find_tenants_with_due(asked, NOON) == [ours, theirs]
    assert port.find_tenants_with_due(asked, add_to_noon(-1)) == [theirs]
    assert port.find_tenants_with_due(asked, add_to_noon(60)) == [idle, ours, theirs]
    assert port.find_tenants_with_due(asked, add_to_noon(-61)) == []
    assert port.find_tenants_with_due([ours, idle], add_to_noon(60)) == [idle, ours]
    assert port.find_tenants_with_due([], NOON) == []


def test_tenants_with_due_timers_are_those_given_however_often_the_same_are_asked_for(
    port: TimerPersistencePort,
) -> None:
    create_timers(TENANT)
    create_timers(OTHER, due_at=add_to_noon(1))
    both, reused = (TENANT, OTHER), [OTHER]
    assert port.find_tenants_with_due(both, NOON) == [TENANT]
    assert port.find_tenants_with_due(both, add_to_noon(1)) == [TENANT, OTHER]
    assert port.find_tenants_with_due((OTHER,), NOON) == []
    assert port.find_tenants_with_due(reused, add_to_noon(1)) == [OTHER]
    reused.append(TENANT)
    assert port.find_tenants_with_due(reused, add_to_noon(1)) == [TENANT, OTHER]


def test_ids_that_are_given_again_are_not_rendered_again(
    port: TimerPersistencePort, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = (TENANT, OTHER)
    render = mock.Mock(side_effect=to_json)
    monkeypatch.setattr(persistence, "to_json", render)
    for _ in range(3):
        port.find_tenants_with_due(given, NOON)
    assert render.call_count == 1


def test_the_seconds_until_due_are_those_of_the_first_scheduled_timer(port: TimerPersistencePort) -> None:
    TimerShard.objects.bulk_create([TimerShard(shard_id=n) for n in range(3)])
    assert port.find_seconds_until_due([0, 1, 2]) is None
    create_timers(TENANT, due_at=add_to_noon(9), shard_id=1)
    create_timers(OTHER, due_at=add_to_noon(5), shard_id=2)
    create_reached_timer(due_at=add_to_noon(-9), shard_id=1)
    assert port.find_seconds_until_due([0, 1, 2]) == 5.0
    assert port.find_seconds_until_due([0, 1]) == 9.0
    assert port.find_seconds_until_due([0]) is None


# --- firing ---------------------------------------------------------------------------------------------------


def test_timers_of_several_tenants_are_marked_under_the_versions_of_their_shards(
    port: TimerPersistencePort,
) -> None:
    rows = create_timers(TENANT, 2, shard_id=1) + create_timers(OTHER, 2, shard_id=2)
    due = port.find_due_in_shards(NOON, 100, PollScope([1, 2]))
    port.mark_fired(due, add_to_noon(1), {1: 11, 2: 22})
    for row in rows:
        assert get_state(row) == ("Reached", NOON, add_to_noon(1))
        assert get_values(row)["claim_version"] == 11 * row.shard_id
    assert port.find_due_in_shards(NOON, 100, PollScope([1, 2])) == []


def test_a_timer_is_marked_once(port: TimerPersistencePort) -> None:
    create_timers(TENANT, 3)
    due = port.find_due(TENANT, NOON, 100)
    port.mark_fired(due[:1], NOON, VERSIONS)
    with pytest.raises(LostRace, match="2 of 3"), transaction.atomic():
        port.mark_fired(due, add_to_noon(1), VERSIONS)
    assert [get_state(timer) for timer in due] == [("Reached", NOON, NOON), *[("Scheduled", NOON, None)] * 2]


@pytest.mark.parametrize("state", ["missing", "of another tenant", "deleted", "reached"])
def test_no_timer_is_marked_that_is_not_scheduled(port: TimerPersistencePort, state: str) -> None:
    timer = build_timer(TENANT)
    if state != "missing":
        port.insert_timers([timer], NOON)
    if state == "deleted":
        port.unschedule_timer(*key(timer))
    if state == "reached":
        port.mark_fired([timer], NOON, VERSIONS)
    if state == "of another tenant":
        timer = timer._replace(tenant_id=OTHER)
    with pytest.raises(LostRace), transaction.atomic():
        port.mark_fired([timer], NOON, VERSIONS)


@pytest.mark.django_db(transaction=True)
def test_timers_that_another_transaction_has_found_are_skipped(
    port: TimerPersistencePort, elsewhere: Callable[..., Future[Any]]
) -> None:
    """SQLite has one writer: there the other search waits, and finds what is left."""
    create_timers(TENANT, 3)
    with transaction.atomic():
        ours = port.find_due(TENANT, NOON, 2)
        port.mark_fired(ours, NOON, VERSIONS)
        others = elsewhere(find_in_transaction, port)
        if connection_skips_locks():
            assert len(others.result(30)) == 1
    assert len({*call_ids(ours), *others.result(30)}) == 3


def find_in_transaction(port: TimerPersistencePort) -> list[UUID]:
    with transaction.atomic():
        return [timer.service_call_id for timer in port.find_due(TENANT, NOON, 100)]


def connection_skips_locks() -> bool:
    return bool(get_dialect().locks.for_update_skip_locked)

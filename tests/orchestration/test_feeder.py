"""The feeder's passes between a timer store in memory and the calls of a real database."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from eventservice.db.now import pin_time
from eventservice.kernel.errors import NotFound
from eventservice.kernel.ids import new_id
from eventservice.kernel.ttl_cache import clear_caches
from eventservice.tenants.models import Tenant
from orchestration.feeder.database_calls import DatabaseCalls
from orchestration.feeder.feeder import DEFAULT_OPTIONS, OWN_PASSES, Feeder, FeederOptions
from orchestration.feeder.timer_changes import StoredTimers, TimerFiring
from orchestration.models import ServiceCall
from orchestration.retries import RetryPolicy
from tests.contracts.timer_stores.memory_store import MemoryTables, MemoryTimerStore
from tests.factories import NOON, NamespaceFactory
from tests.orchestration.support import ManualEngine, build_error, build_response, get_status
from timers.membership import Membership
from timers.pause import pause_dispatch
from timers.stores.port import QualifiedNamespace, Revision, StoredTimer, TimerKey

pytestmark = pytest.mark.django_db

CELL, STORE, NUM_SHARDS = "cell", "fleet", 4
SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)
# The callback asks to be called again then.
IN_AN_HOUR = b'{"ok": false, "nextExecuteAt": "2026-03-01T13:00:00Z"}'


class Setting:
    """A cell with one engine, whose passes happen when the test says."""

    def __init__(
        self, namespace: QualifiedNamespace, engine: ManualEngine, options: FeederOptions = DEFAULT_OPTIONS
    ) -> None:
        self.namespace, self.engine = namespace, engine
        self.tables = MemoryTables()
        self.store = MemoryTimerStore(self.tables, CELL)
        self.calls = DatabaseCalls(STORE)
        self.store.declare_namespace(namespace, NUM_SHARDS, self.calls.get_fingerprint(namespace))
        self.feeder = Feeder(
            self.store, self.calls, clock=lambda: self.tables.clock.timestamp(), options=options
        )
        self.timers = StoredTimers(self.store, self.calls, CELL, 5 * SECOND)
        # The second pass is the first one of a member that others can see.
        self.run_pass(NOON)
        self.run_pass(NOON)

    def run_pass(self, at: datetime) -> int:
        self.tables.clock = at
        with pin_time(at):
            result = self.feeder.run_pass()
        return result.fed

    def set(self, timer_id: str, execute_at: datetime) -> StoredTimer:
        key = TimerKey.build(self.namespace, timer_id, NUM_SHARDS)
        timer = StoredTimer(
            key, Revision(new_id()), execute_at, execute_at, NOON, "https://example.com/timers",
            retry_policy=RetryPolicy(max_attempts=2).to_stored(),
        )  # fmt: skip
        self.timers.set(timer)
        return timer


@pytest.fixture
def setting(tenant: Any, manual_engine: ManualEngine) -> Setting:
    NamespaceFactory(tenant=tenant, name="alerts", num_shards=NUM_SHARDS, store=STORE)
    return Setting(QualifiedNamespace(tenant.tenant_id, "alerts"), manual_engine)


def test_a_timer_is_taken_shortly_before_it_is_due_and_removed_when_it_is_done(
    setting: Setting, tenant: Any
) -> None:
    timer = setting.set("later", NOON + HOUR)
    assert setting.run_pass(NOON) == 0
    near = NOON + HOUR - 4 * SECOND
    assert setting.run_pass(near) == 1
    with pin_time(near):
        assert setting.engine.start() == []
    with pin_time(NOON + HOUR):
        started = setting.engine.start_one()
        setting.engine.finish((started, build_response(started)))
    setting.run_pass(NOON + HOUR)
    assert setting.tables.timers == {}
    assert setting.calls.list_marks(10) == []
    assert get_status(tenant, timer.revision) == "Succeeded"


def test_a_failed_timer_is_attempted_again_and_then_removed(setting: Setting, tenant: Any) -> None:
    timer = setting.set("now", NOON)
    for number in (1, 2):
        at = setting.tables.timers[timer.key].execute_at
        setting.run_pass(at)
        with pin_time(at):
            started = setting.engine.start_one()
            assert started.attempt == number
            setting.engine.finish((started, build_error(started)))
        setting.run_pass(at)
    assert setting.tables.timers == {}
    assert get_status(tenant, timer.revision) == "Failed"


def test_a_timer_that_is_due_at_once_is_fed_at_once_and_cannot_be_changed_meanwhile(setting: Setting) -> None:
    timer = setting.set("now", NOON)
    started = setting.engine.start_one()
    for change in (lambda: setting.timers.delete(timer.key), lambda: setting.set("now", NOON + HOUR)):
        with pytest.raises(TimerFiring):
            change()
    setting.engine.finish((started, build_response(started)))
    setting.run_pass(NOON)
    with pytest.raises(NotFound):
        setting.timers.delete(timer.key)
    setting.set("now", NOON + HOUR)


def test_a_timer_that_was_taken_and_not_fed_is_fed_by_one_of_the_next_passes(setting: Setting) -> None:
    timer = setting.set("later", NOON + HOUR)
    at = NOON + HOUR
    setting.store.take([timer], at, at + HOUR)
    assert sum(setting.run_pass(at) for _ in range(OWN_PASSES)) == 1


def test_the_last_engine_that_stops_leaves_to_other_cells_what_it_has_not_started(
    setting: Setting, tenant: Any
) -> None:
    """It also removes what it has done, so that nobody repeats that."""
    done, ready = setting.set("done", NOON), setting.set("ready", NOON + 3 * SECOND)
    started = setting.engine.start_one()
    other = Membership()
    other.join()
    setting.engine.membership.hand_over(1)
    setting.engine.finish((started, build_response(started)))
    setting.feeder.leave()

    setting.feeder.end_takes()
    assert done.key not in setting.tables.timers
    assert setting.tables.timers[ready.key].is_taken(NOON)

    other.leave()
    setting.feeder.end_takes()
    assert not setting.tables.timers[ready.key].is_taken(NOON)
    assert setting.calls.list_marks(10) == []
    later = NOON + 4 * SECOND
    with pin_time(later):
        restarted = ManualEngine()
        assert restarted.start() == []
        (left,) = setting.store.due(ready.key.shard, later, later, None, 10).timers
        setting.calls.feed(setting.store.take([left], later, later + HOUR))
        assert restarted.start_one().attempt == 2


def test_a_waiting_timer_can_be_deleted_and_its_call_is_closed(setting: Setting, tenant: Any) -> None:
    timer = setting.set("now", NOON)
    started = setting.engine.start_one()
    setting.engine.finish((started, build_response(started, body=IN_AN_HOUR)))
    setting.run_pass(NOON)
    setting.timers.delete(timer.key)
    assert get_status(tenant, timer.revision) == "Canceled"


def test_a_waiting_timer_can_be_moved_and_keeps_its_call(setting: Setting, tenant: Any) -> None:
    timer = setting.set("now", NOON)
    started = setting.engine.start_one()
    with pytest.raises(TimerFiring):
        setting.timers.move(timer.key, timer.revision, NOON + SECOND)
    setting.engine.finish((started, build_response(started, body=IN_AN_HOUR)))
    setting.run_pass(NOON)
    for at in (NOON + 2 * HOUR, NOON + SECOND):
        setting.timers.move(timer.key, timer.revision, at)
    assert setting.run_pass(NOON) == 1
    with pin_time(NOON + SECOND):
        started = setting.engine.start_one()
        assert started.key.service_call_id == timer.revision
        setting.engine.finish((started, build_response(started)))
    setting.run_pass(NOON + SECOND)
    assert setting.tables.timers == {}
    assert get_status(tenant, timer.revision) == "Succeeded"


def test_a_timer_that_is_gone_or_was_changed_is_not_moved(setting: Setting) -> None:
    first = setting.set("later", NOON + HOUR)
    second = setting.set("later", NOON + HOUR)
    with pytest.raises(NotFound):
        setting.timers.move(first.key, first.revision, NOON)
    assert setting.tables.timers[second.key].execute_at == NOON + HOUR
    setting.timers.delete(second.key)
    with pytest.raises(NotFound):
        setting.timers.move(second.key, second.revision, NOON)


def test_a_call_whose_timer_was_deleted_in_another_cell_is_closed(setting: Setting, tenant: Any) -> None:
    timer = setting.set("now", NOON)
    started = setting.engine.start_one()
    setting.engine.finish((started, build_response(started, body=IN_AN_HOUR)))
    setting.run_pass(NOON)
    setting.tables.timers.clear()
    setting.run_pass(NOON + 2 * HOUR)
    assert get_status(tenant, timer.revision) == "Canceled"


def test_a_call_whose_timer_another_cell_has_taken_is_not_overdue_here(setting: Setting, tenant: Any) -> None:
    timer = setting.set("now", NOON)
    started = setting.engine.start_one()
    setting.engine.finish((started, build_response(started, body=IN_AN_HOUR)))
    setting.run_pass(NOON)
    due = NOON + HOUR
    taken_until = due + 40 * SECOND
    (stored,) = setting.tables.timers.values()
    MemoryTimerStore(setting.tables, "other").take([stored], due, taken_until)
    setting.run_pass(due + 11 * SECOND)
    call = ServiceCall.objects.for_tenant(tenant.tenant_id).get(service_call_id=timer.revision)
    assert (call.status, call.due_at) == ("Scheduled", taken_until)


def test_a_cell_that_is_paused_or_whose_clock_differs_takes_nothing(setting: Setting) -> None:
    setting.set("later", NOON + HOUR)
    with pin_time(NOON + HOUR):
        setting.tables.clock = NOON + HOUR - 2 * SECOND
        assert not setting.feeder.run_pass().was_able
        setting.tables.clock = NOON + HOUR
        pause_dispatch("tester", "why")
        assert not setting.feeder.run_pass().was_able
    assert all(timer.takes == 0 for timer in setting.tables.timers.values())


def test_a_timer_of_an_unknown_namespace_is_put_off_and_not_taken(setting: Setting) -> None:
    key = TimerKey.build(QualifiedNamespace(setting.namespace.tenant_id, "unknown"), "x", NUM_SHARDS)
    timer = StoredTimer(key, Revision(new_id()), NOON, NOON, NOON, "https://example.com/timers")
    setting.store.put(timer, None, NOON)
    setting.run_pass(NOON)
    (stored,) = setting.tables.timers.values()
    assert (stored.takes, stored.taken_by) == (0, None)
    assert stored.taken_until > NOON


def test_a_namespace_that_others_send_differently_is_left_to_them(setting: Setting) -> None:
    (declared,) = setting.store.namespaces()
    setting.store.change_fingerprint(declared, {"egress": "other"})
    setting.set("later", NOON + HOUR)
    assert setting.run_pass(NOON + HOUR) == 0
    assert setting.feeder.differing == {setting.namespace}


# --- backlogs -----------------------------------------------------------------------------------------------------


def put_in_one_shard(setting: Setting, name: str, count: int, execute_at: datetime) -> set[Revision]:
    """Put timers as another cell does, which feeds none of them."""
    keys = (TimerKey.build(setting.namespace, f"{name}-{number}", NUM_SHARDS) for number in range(1000))
    chosen = [key for key in keys if key.shard == 0][:count]
    timers = [
        StoredTimer(
            key, Revision(new_id()), execute_at, execute_at, NOON - HOUR, "https://example.com/timers"
        )
        for key in chosen
    ]
    for timer in timers:
        setting.store.put(timer, None, NOON)
    return {timer.revision for timer in timers}


def count_taken(setting: Setting, timers: set[Revision]) -> int:
    """Return how many of the timers have been taken, or have ended."""
    untaken = {timer.revision for timer in setting.tables.timers.values() if not timer.takes}
    return len(timers - untaken)


@pytest.fixture
def build_setting(tenant: Any, manual_engine: ManualEngine) -> Callable[[FeederOptions], Setting]:
    NamespaceFactory(tenant=tenant, name="alerts", num_shards=NUM_SHARDS, store=STORE)
    namespace = QualifiedNamespace(tenant.tenant_id, "alerts")
    return lambda options: Setting(namespace, manual_engine, options)


def test_timers_that_become_due_do_not_wait_for_a_backlog_and_the_backlog_does_not_wait_for_them(
    build_setting: Callable[[FeederOptions], Setting],
) -> None:
    setting = build_setting(FeederOptions(page_size=1, extra_pages=6))
    old = put_in_one_shard(setting, "old", 34, NOON - HOUR)
    setting.run_pass(NOON)
    for number in range(1, 6):
        at = NOON + 6 * number * SECOND
        # One that is due in the look-ahead, and one that was moved to a time that an earlier pass has seen.
        new = put_in_one_shard(setting, f"new-{number}", 1, at + 4 * SECOND)
        new |= put_in_one_shard(setting, f"moved-{number}", 1, at - SECOND)
        before = count_taken(setting, old)
        assert before < len(old)
        setting.run_pass(at)
        assert count_taken(setting, new) == 2
        assert count_taken(setting, old) > before
    assert count_taken(setting, old) == len(old)


def test_timers_that_become_due_and_a_backlog_share_too_little_room(
    build_setting: Callable[[FeederOptions], Setting],
) -> None:
    setting = build_setting(FeederOptions(page_size=2, max_taken=1))
    old = put_in_one_shard(setting, "old", 10, NOON - HOUR)
    new: set[Revision] = set()
    for number in range(12):
        at = NOON + 2 * number * SECOND
        new |= put_in_one_shard(setting, f"new-{number}", 1, at)
        setting.run_pass(at)
        with pin_time(at):
            setting.engine.finish(*((one, build_response(one)) for one in setting.engine.start()))
    assert min(count_taken(setting, old), count_taken(setting, new)) >= 4


def test_a_pass_that_filled_the_room_of_a_tenant_is_followed_by_another_when_attempts_have_started(
    build_setting: Callable[[FeederOptions], Setting], tenant: Any
) -> None:
    Tenant.objects.filter(pk=tenant.tenant_id).update(max_in_flight=10)
    clear_caches()
    setting = build_setting(FeederOptions())
    put_in_one_shard(setting, "timer", 150, NOON)
    assert not setting.feeder.waits_for_room()
    assert setting.run_pass(NOON) == 100
    assert setting.feeder.waits_for_room()
    with pin_time(NOON):
        assert not setting.feeder.has_new_room()
        setting.engine.start(100)
        assert setting.feeder.has_new_room()
    assert setting.run_pass(NOON) == 50
    assert not setting.feeder.waits_for_room()


def test_a_process_has_taken_a_limited_number_of_timers_that_have_not_started(
    build_setting: Callable[[FeederOptions], Setting],
) -> None:
    setting = build_setting(FeederOptions(max_taken=3))
    put_in_one_shard(setting, "timer", 10, NOON)
    assert [setting.run_pass(NOON) for _ in range(2)] == [3, 0]
    with pin_time(NOON):
        assert len(setting.engine.start(1)) == 1
    assert [setting.run_pass(NOON) for _ in range(2)] == [1, 0]

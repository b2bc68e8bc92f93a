"""No outcome is lost while the database is unavailable, and nothing is sent that is not recorded."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from django.db import OperationalError, connection

from eventservice.db.now import pin_time
from eventservice.kernel.ttl_cache import clear_caches
from eventservice.tenants.directory import create_tenant
from eventservice.tenants.models import Tenant
from orchestration.engine import engine as engine_module
from orchestration.engine.engine import HEARTBEAT_SECONDS, REBALANCE_SECONDS, SWEEP_SECONDS, PassResult
from orchestration.states import Delivery
from tests.factories import NOON
from tests.orchestration.support import (
    FakeEgress,
    SteppedEngine,
    add_to_noon,
    build_engine,
    database_unavailable,
    get_status,
    list_attempts,
    read_all_rows,
    submit,
)
from timers.membership import NODE_LEASE, Membership, list_node_ids
from timers.models import TimerShard

AWAY_SECONDS = NODE_LEASE.total_seconds() * 1.5
# By then, every periodic task of an engine is due.
ALL_TASKS_SECONDS = max(SWEEP_SECONDS, HEARTBEAT_SECONDS)

# With transactions of its own: an engine in trouble closes its connection, which would end a test's transaction.
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def noon() -> Iterator[datetime]:
    with pin_time(NOON):
        yield NOON


@pytest.fixture
def tenant(transactional_db: None) -> Tenant:
    return create_tenant("acme")


def start_two_engines(tenant: Any) -> tuple[list[uuid.UUID], list[SteppedEngine], list[FakeEgress]]:
    calls = [submit(tenant, timeout_seconds=1.0) for _ in range(20)]
    egresses = [FakeEgress(), FakeEgress()]
    engines = [build_engine(egress) for egress in egresses]
    for engine in engines:
        engine.take_shards()
    for engine in engines:
        engine.poll_now()
    assert [bool(engine.in_flight) for engine in engines] == [True, True]
    assert sum(len(engine.in_flight) for engine in engines) == len(calls)
    return calls, engines, egresses


def test_outcomes_that_cannot_be_written_are_written_later(tenant: Any) -> None:
    service_call_id, egress = submit(tenant), FakeEgress()
    engine = build_engine(egress)
    engine.poll_once(0)
    egress.answer()
    before = read_all_rows()

    for statement in (
        "SELECT 1 FROM nodes",
        "UPDATE service_calls",
        "UPDATE http_execution_log",
        "INSERT INTO",
    ):
        with database_unavailable(statement):
            assert engine.poll_once(0) == PassResult(0, 0)
        assert read_all_rows() == before
        assert len(engine.in_flight) == 1

    assert engine.poll_once(0).recorded == 1
    assert get_status(tenant, service_call_id) == "Succeeded"
    assert not engine.in_flight


def test_outcomes_that_arrive_while_no_tenant_can_be_read_are_written(tenant: Any) -> None:
    service_call_id, egress = submit(tenant), FakeEgress()
    engine = build_engine(egress)
    engine.poll_now()
    engine.poll_now()
    egress.answer()
    clear_caches()
    with database_unavailable("SELECT tenants"):
        engine.poll_once(0)
    engine.poll_once(0)
    assert get_status(tenant, service_call_id) == "Succeeded"
    assert not engine.in_flight


def test_a_node_that_cannot_release_its_shards_when_it_stops_is_reaped(tenant: Any) -> None:
    stopped, egress = build_engine(FakeEgress()), FakeEgress()
    stopped.take_shards()
    with database_unavailable("UPDATE timer_shards"):
        stopped.stop(grace_seconds=0)
    assert list_node_ids() == [stopped.membership.owner_id]
    submit(tenant)
    with pin_time(add_to_noon(NODE_LEASE.total_seconds() + 1)):
        engine = build_engine(egress)
        engine.take_shards()
        assert engine.poll_now().started == 1


def test_a_failed_handover_is_repeated_while_the_attempts_end(tenant: Any) -> None:
    submit(tenant)
    egress, owned = FakeEgress(), []
    engine = build_engine(egress)
    engine.poll_now()
    egress.answer()
    collect, hand_over = egress.collect, engine.membership.hand_over

    def fail(in_flight: int) -> None:
        engine.membership.hand_over = hand_over  # type: ignore[method-assign]
        raise OperationalError("deadlock")

    def count_owned_shards(timeout: float) -> Any:
        owned.append(TimerShard.objects.exclude(owner_id=None).count())
        return collect(timeout)

    engine.membership.hand_over = fail  # type: ignore[method-assign]
    egress.collect = count_owned_shards  # type: ignore[method-assign]
    engine.stop(grace_seconds=5)
    assert owned[0] == 0
    assert not list_node_ids()


def test_an_engine_whose_heartbeats_are_always_late_reaps_dead_nodes(
    tenant: Any,
) -> None:
    engine = build_engine(FakeEgress())
    build_engine(FakeEgress())
    gap = NODE_LEASE.total_seconds() * 0.6
    for number in range(1, 5):
        engine.clock.advance(gap)
        with pin_time(add_to_noon(number * gap)):
            engine.poll_once(0)
    assert list_node_ids() == [engine.membership.owner_id]


def test_a_start_that_cannot_be_written_sends_nothing_and_is_repeated(tenant: Any) -> None:
    egress = FakeEgress()
    engine = build_engine(egress)
    engine.poll_once(0)
    submit(tenant)
    before = read_all_rows()

    for statement in ("UPDATE timer_schedules", "UPDATE service_calls", "INSERT INTO"):
        with database_unavailable(statement):
            assert engine.poll_now() == PassResult(0, 0)
        assert read_all_rows() == before

    assert egress.sent == []
    assert engine.poll_now().started == len(egress.sent) == 1


def test_no_call_is_started_and_unsent_when_its_tenant_cannot_be_read(tenant: Any) -> None:
    submit(tenant)
    egress = FakeEgress()
    engine = build_engine(egress)
    clear_caches()
    with database_unavailable("SELECT tenants"):
        assert engine.poll_now() == PassResult(0, 0)
    assert not engine.in_flight
    assert engine.poll_now().started == len(egress.sent) == 1


def test_committed_starts_are_sent_when_the_database_is_back(
    tenant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    egress = FakeEgress()
    engine = build_engine(egress)
    engine.poll_now()
    submit(tenant)
    # As if the batch had waited for a lock longer than its node's lease lasts.
    monkeypatch.setattr(Membership, "lease_may_have_ended", True)
    with database_unavailable("UPDATE nodes"):
        engine.poll_now()
    assert egress.sent == []
    engine.poll_now()
    assert len(egress.sent) == len(engine.in_flight) == 1


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_start_whose_commit_was_not_confirmed_is_sent_if_it_was_committed(
    tenant: Any, is_committed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    egress = FakeEgress()
    engine = build_engine(egress)
    engine.poll_now()
    service_call_id = submit(tenant, delivery=Delivery.AT_MOST_ONCE)
    commit = connection.commit

    def lose_the_answer() -> None:
        if is_committed:
            commit()
        raise OperationalError("server closed the connection unexpectedly")

    with monkeypatch.context() as patched:
        patched.setattr(
            engine, "_send_started", lambda: patched.setattr(connection, "commit", lose_the_answer)
        )
        engine.poll_now()
    assert egress.sent == []
    engine.poll_now()
    engine.poll_now()
    assert len(egress.sent) == len(engine.in_flight) == 1
    egress.answer()
    engine.poll_now()
    assert get_status(tenant, service_call_id) == "Succeeded"
    assert len(list_attempts(tenant, service_call_id)) == 1


@pytest.mark.parametrize("first_back", [0, 1])
def test_after_an_outage_of_more_than_a_lease_no_engine_is_declared_dead(
    tenant: Any, first_back: int
) -> None:
    # The attempts are overdue by then, too, but their engines may be about to record the outcomes.
    calls, engines, egresses = start_two_engines(tenant)
    with pin_time(add_to_noon(AWAY_SECONDS)):
        with database_unavailable(""):
            for engine in engines:
                engine.poll_after(ALL_TASKS_SECONDS)
        for engine in (engines[first_back], engines[1 - first_back]):
            engine.poll_now()
            engine.poll_now()
        for engine, egress in zip(engines, egresses, strict=True):
            egress.answer()
            engine.poll_now()
    assert {get_status(tenant, call) for call in calls} == {"Succeeded"}
    assert [len(list_attempts(tenant, call)) for call in calls] == [1] * len(calls)


@pytest.mark.parametrize("first", [0, 1])
def test_when_the_databases_clock_jumps_no_engine_is_declared_dead(tenant: Any, first: int) -> None:
    calls, engines, egresses = start_two_engines(tenant)
    with pin_time(add_to_noon(AWAY_SECONDS)):
        for engine in (engines[first], engines[1 - first]):
            engine.poll_after(REBALANCE_SECONDS)
        for engine, egress in zip(engines, egresses, strict=True):
            egress.answer()
            engine.poll_after(ALL_TASKS_SECONDS)
    assert {get_status(tenant, call) for call in calls} == {"Succeeded"}


def test_an_engine_that_does_not_come_back_is_declared_dead_a_lease_later(tenant: Any) -> None:
    _, (back, dead), _ = start_two_engines(tenant)
    with pin_time(add_to_noon(AWAY_SECONDS)):
        back.poll_after(ALL_TASKS_SECONDS)
        back.poll_after(NODE_LEASE.total_seconds() / 2)
        assert dead.membership.owner_id in list_node_ids()
    with pin_time(add_to_noon(AWAY_SECONDS + 1)):
        back.poll_after(NODE_LEASE.total_seconds())
    assert list_node_ids() == [back.membership.owner_id]
    assert dead.in_flight


def test_an_engines_own_overdue_attempts_do_not_hide_lost_ones(
    tenant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "WATCHDOG_BATCH_SIZE", 1)
    for _ in range(3):
        submit(tenant, timeout_seconds=1.0)
    engine = build_engine(FakeEgress())
    engine.poll_now()
    lost = submit(tenant, timeout_seconds=2.0)
    engine.poll_now()
    (attempt,) = list_attempts(tenant, lost)
    engine.in_flight.remove([attempt.execution_id])
    with pin_time(add_to_noon(60)):
        engine.poll_after(SWEEP_SECONDS)  # its heartbeat is late, so nothing is resolved before another lease
        engine.poll_after(NODE_LEASE.total_seconds())
    assert list_attempts(tenant, lost)[0].error_kind == "Interrupted"

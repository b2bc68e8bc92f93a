"""The database goes away for a while: no outcome is lost, and nothing is sent that is not on record."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Iterator
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import OperationalError

from eventservice.db.now import pin_time
from eventservice.tenants.directory import clear_profile_cache, create_tenant
from eventservice.tenants.models import Tenant
from orchestration.engine import engine as engine_module
from orchestration.engine.engine import Engine, PassResult
from tests.orchestration.support import (
    NOON,
    FakeEgress,
    after,
    database_away,
    engine_on,
    everything,
    log_of,
    look,
    status_of,
    submit,
)
from timers.membership import NODE_LEASE, list_node_ids
from timers.models import TimerShard

AWAY_SECONDS = NODE_LEASE.total_seconds() * 1.5

# Transactions of its own: in trouble the engine drops its connection, and with it a test's transaction around it.
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits before it tries again; here there is nothing to wait for."""
    monkeypatch.setattr(engine_module, "RETRY_SECONDS", 0.0)


@pytest.fixture(autouse=True)
def noon() -> Iterator[datetime]:
    with pin_time(NOON):
        yield NOON


@pytest.fixture
def tenant(transactional_db: None) -> Tenant:
    return create_tenant("acme")


def two_engines_at_work(tenant: Any) -> tuple[list[uuid.UUID], list[Engine], list[FakeEgress]]:
    calls = [submit(tenant, timeout_seconds=1.0) for _ in range(20)]
    egresses = [FakeEgress(), FakeEgress()]
    engines = [engine_on(egress) for egress in egresses]
    for engine in engines:
        engine.take_shards()
    for engine in engines:
        look(engine)
    assert [bool(engine.in_flight) for engine in engines] == [True, True]
    assert sum(len(engine.in_flight) for engine in engines) == len(calls)
    return calls, engines, egresses


def test_outcomes_that_could_not_be_written_are_written_later(tenant: Any) -> None:
    service_call_id, egress = submit(tenant), FakeEgress()
    engine = engine_on(egress)
    engine.poll_once(0)
    egress.answer()
    before = everything()

    for statement in (
        "SELECT 1 FROM nodes",
        "UPDATE service_calls",
        "UPDATE http_execution_log",
        "INSERT INTO",
    ):
        with database_away(statement):
            assert engine.poll_once(0) == PassResult(0, 0)
        assert everything() == before
        assert len(engine.in_flight) == 1

    assert engine.poll_once(0).recorded == 1
    assert status_of(tenant, service_call_id) == "Succeeded"
    assert not engine.in_flight


def test_outcomes_that_come_while_no_tenant_can_be_read_are_written_later(tenant: Any) -> None:
    service_call_id, egress = submit(tenant), FakeEgress()
    engine = engine_on(egress)
    look(engine)
    look(engine)
    egress.answer()
    clear_profile_cache()
    engine._look_in(60.0)
    engine._watch.has_changed()
    with database_away("SELECT tenants"):
        engine.poll_once(0)
    engine.poll_once(0)
    assert status_of(tenant, service_call_id) == "Succeeded"
    assert not engine.in_flight


def test_a_node_that_cannot_free_its_shards_when_it_stops_is_reaped(tenant: Any) -> None:
    stopped, egress = engine_on(FakeEgress()), FakeEgress()
    stopped.take_shards()
    with database_away("UPDATE timer_shards"):
        stopped.stop(grace_seconds=0)
    assert list_node_ids() == [stopped.membership.owner_id]
    submit(tenant)
    with pin_time(after(NODE_LEASE.total_seconds() + 1)):
        engine = engine_on(egress)
        engine.take_shards()
        assert look(engine).started == 1


def test_a_node_that_could_not_hand_over_at_first_does_so_while_its_attempts_end(tenant: Any) -> None:
    submit(tenant)
    egress, owned = FakeEgress(), []
    engine = engine_on(egress)
    look(engine)
    egress.answer()
    collect, hand_over = egress.collect, engine.membership.hand_over

    def in_trouble(in_flight: int) -> None:
        engine.membership.hand_over = hand_over  # type: ignore[method-assign]
        raise OperationalError("deadlock")

    def observed(timeout: float) -> Any:
        owned.append(TimerShard.objects.exclude(owner_id=None).count())
        return collect(timeout)

    engine.membership.hand_over = in_trouble  # type: ignore[method-assign]
    egress.collect = observed  # type: ignore[method-assign]
    engine.stop(grace_seconds=5)
    assert owned[0] == 0
    assert not list_node_ids()


def test_one_that_always_comes_late_takes_the_dead_for_dead_all_the_same(
    tenant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=1000.0)
    clock.monotonic, clock.sleep = (lambda: clock.now), (lambda seconds: None)
    monkeypatch.setattr(engine_module, "time", clock)
    engine = engine_on(FakeEgress())
    engine_on(FakeEgress())
    gap = NODE_LEASE.total_seconds() * 0.6
    for number in range(1, 5):
        clock.now += gap
        with pin_time(after(number * gap)):
            engine.poll_once(0)
    assert list_node_ids() == [engine.membership.owner_id]


def test_a_start_that_could_not_be_written_sends_nothing_and_is_made_later(tenant: Any) -> None:
    egress = FakeEgress()
    engine = engine_on(egress)
    engine.poll_once(0)
    submit(tenant)
    before = everything()

    for statement in ("UPDATE timer_schedules", "UPDATE service_calls", "INSERT INTO"):
        with database_away(statement):
            assert look(engine) == PassResult(0, 0)
        assert everything() == before

    assert egress.sent == []
    assert look(engine).started == len(egress.sent) == 1


def test_a_tenant_that_cannot_be_read_leaves_no_call_started_and_unsent(tenant: Any) -> None:
    submit(tenant)
    egress = FakeEgress()
    engine = engine_on(egress)
    clear_profile_cache()
    with database_away("SELECT tenants"):
        assert look(engine) == PassResult(0, 0)
    assert not engine.in_flight
    assert look(engine).started == len(egress.sent) == 1


def test_what_is_committed_is_sent_when_the_database_is_back(tenant: Any) -> None:
    submit(tenant)
    egress = FakeEgress()
    engine = engine_on(egress)
    engine.take_shards()
    engine.membership._lease_ends_at = (
        0.0  # as if the batch had waited for a lock longer than its node's lease lasts
    )
    engine._due["beat"] = math.inf
    with database_away("UPDATE nodes"):
        look(engine)
    assert egress.sent == []
    look(engine)
    assert len(egress.sent) == len(engine.in_flight) == 1


@pytest.mark.parametrize("first_back", [0, 1])
def test_after_longer_than_a_lease_no_engine_takes_itself_or_another_for_dead(
    tenant: Any, first_back: int
) -> None:
    """By their attempts' time-out they are overdue too: whoever made them may be about to write what came of them."""
    calls, engines, egresses = two_engines_at_work(tenant)
    with pin_time(after(AWAY_SECONDS)):
        with database_away(""):
            for engine in engines:
                engine._due.clear()  # it is time for all that is done now and then
                look(engine)
        for engine in (engines[first_back], engines[1 - first_back]):
            look(engine)
            look(engine)
        for engine, egress in zip(engines, egresses, strict=True):
            egress.answer()
            look(engine)
    assert {status_of(tenant, call) for call in calls} == {"Succeeded"}
    assert [len(log_of(tenant, call)) for call in calls] == [1] * len(calls)


@pytest.mark.parametrize("first", [0, 1])
def test_when_the_databases_clock_leaps_no_engine_takes_itself_or_another_for_dead(
    tenant: Any, first: int
) -> None:
    calls, engines, egresses = two_engines_at_work(tenant)
    with pin_time(after(AWAY_SECONDS)):
        for engine in (engines[first], engines[1 - first]):
            engine._due.pop("rebalance")
            look(engine)
        for engine, egress in zip(engines, egresses, strict=True):
            engine._due.clear()
            egress.answer()
            look(engine)
    assert {status_of(tenant, call) for call in calls} == {"Succeeded"}


def test_who_does_not_come_back_is_taken_for_dead_a_lease_later(tenant: Any) -> None:
    _, (back, dead), _ = two_engines_at_work(tenant)
    with pin_time(after(AWAY_SECONDS)):
        back._due.clear()
        look(back)
        assert back._due["reap"] > time.monotonic() + NODE_LEASE.total_seconds() / 2
    with pin_time(after(AWAY_SECONDS + 1)):
        back._due.clear()
        look(back)
    assert list_node_ids() == [back.membership.owner_id]
    assert dead.in_flight


def test_its_own_overdue_attempts_do_not_hide_those_that_are_lost(
    tenant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "WATCHDOG_BATCH_SIZE", 1)
    for _ in range(3):
        submit(tenant, timeout_seconds=1.0)
    engine = engine_on(FakeEgress())
    look(engine)
    lost = submit(tenant, timeout_seconds=2.0)
    look(engine)
    (attempt,) = log_of(tenant, lost)
    engine.in_flight.remove(attempt.execution_id)
    with pin_time(after(60)):
        engine._due.pop("sweep")
        look(engine)
    assert log_of(tenant, lost)[0].error_kind == "Interrupted"

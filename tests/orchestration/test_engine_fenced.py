"""When a node is declared dead, or loses shards, no outcome is lost and none is recorded twice."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from django.db.models import F

from eventservice.db.now import pin_time
from eventservice.kernel.ids import new_id
from execution.attempt_log import list_orphaned_attempts
from execution.models import HttpExecution
from orchestration import lifecycle
from orchestration.engine import engine as engine_module
from orchestration.engine.engine import HEARTBEAT_SECONDS, SWEEP_SECONDS, PassResult
from orchestration.engine.recovery import resolve_stuck_calls
from orchestration.retries import RetryPolicy
from orchestration.states import Delivery
from tests.orchestration.support import (
    FakeEgress,
    ManualEngine,
    SteppedEngine,
    add_to_noon,
    build_engine,
    get_status,
    list_attempts,
    submit,
)
from timers.membership import Membership, list_node_ids, reap_dead_node
from timers.models import Node, TimerShard

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]


def start_one_call(tenant: Any, **terms: Any) -> tuple[Any, FakeEgress, SteppedEngine]:
    service_call_id, egress = submit(tenant, **terms), FakeEgress()
    engine = build_engine(egress)
    assert engine.poll_once(0).started == 1
    return service_call_id, egress, engine


def test_a_reaped_node_joins_again_and_records_the_outcomes_that_it_holds(tenant: Any) -> None:
    service_call_id, egress, engine = start_one_call(tenant, delivery=Delivery.AT_MOST_ONCE)
    former = engine.membership.owner_id
    with pin_time(add_to_noon(60)):
        assert reap_dead_node() == former
        egress.answer(status=201)
        assert engine.poll_once(0) == PassResult(0, 0)
        assert engine.poll_once(0) == PassResult(0, 1)
    assert engine.membership.owner_id != former
    assert get_status(tenant, service_call_id) == "Succeeded"
    assert [row.response_status for row in list_attempts(tenant, service_call_id)] == [201]
    assert not engine.in_flight


def test_attempts_that_a_reaped_node_still_makes_are_its_own_when_it_has_joined_again(tenant: Any) -> None:
    service_call_id, _, engine = start_one_call(tenant, timeout_seconds=3600)
    with pin_time(add_to_noon(60)):
        reap_dead_node()
        engine.clock.advance(HEARTBEAT_SECONDS)
        engine.poll_once(0)
        engine.poll_once(0)
        other = build_engine(FakeEgress())
        other.poll_after(SWEEP_SECONDS)
        other.poll_after(SWEEP_SECONDS)
    assert [(row.node, row.error_kind) for row in list_attempts(tenant, service_call_id)] == [
        (engine.membership.owner_id, None)
    ]


def test_a_watchdog_leaves_attempts_alone_that_were_reclaimed_since_it_listed_them(
    tenant: Any, manual_engine: ManualEngine
) -> None:
    service_call_id = submit(tenant)
    started = manual_engine.start_one()
    manual_engine.membership.leave()
    (listed,) = list_orphaned_attempts(list_node_ids, 10)
    assert listed == started.key
    again = Membership()
    again.join()
    assert lifecycle.reclaim([listed], again.owner_id, again.fence, sent=True) == {listed.execution_id}

    assert lifecycle.resolve_orphaned([listed], list_node_ids) == 0
    assert get_status(tenant, service_call_id) == "Running"
    assert list_attempts(tenant, service_call_id)[0].finished_at is None


def test_a_call_that_is_to_be_canceled_is_not_reclaimed_before_it_was_sent(
    tenant: Any, manual_engine: ManualEngine
) -> None:
    service_call_id = submit(tenant)
    started = manual_engine.start_one()
    lifecycle.cancel(tenant.tenant_id, service_call_id)
    node = manual_engine.membership
    assert lifecycle.reclaim([started.key], node.owner_id, node.fence, sent=False) == set()
    assert lifecycle.reclaim([started.key], node.owner_id, node.fence, sent=True) != set()


def test_a_reaped_node_joins_again_and_its_late_outcomes_only_close_log_rows(tenant: Any) -> None:
    service_call_id, egress, engine = start_one_call(tenant)
    former = engine.membership.owner_id
    with pin_time(add_to_noon(60)):
        assert reap_dead_node() == former
        resolve_stuck_calls()
        egress.answer(status=201)
        assert engine.poll_once(0) == PassResult(0, 0)
        assert engine.membership.owner_id != former
        assert list(Node.objects.values_list("pk", flat=True)) == [engine.membership.owner_id]

        engine.poll_now()
        assert list_attempts(tenant, service_call_id)[0].response_status == 201
        engine.poll_now()
        assert get_status(tenant, service_call_id) == "Running"

        egress.answer(1)
        engine.poll_now()
    assert get_status(tenant, service_call_id) == "Succeeded"
    assert [row.response_status for row in list_attempts(tenant, service_call_id)] == [201, 200]
    assert not engine.in_flight


def test_a_late_outcome_does_not_count_against_the_retry_policy(tenant: Any) -> None:
    service_call_id, egress, engine = start_one_call(tenant, retry_policy=RetryPolicy(max_attempts=1))
    with pin_time(add_to_noon(60)):
        reap_dead_node()
        resolve_stuck_calls()
        egress.answer(status=500)
        engine.poll_once(0)
        engine.poll_once(0)
        assert get_status(tenant, service_call_id) in ("Scheduled", "Running")


def test_a_node_that_has_lost_some_shards_goes_on_with_the_others(tenant: Any) -> None:
    service_call_id, egress, engine = start_one_call(tenant)
    former = engine.membership.owner_id
    TimerShard.objects.filter(pk__lt=8).update(
        version=F("version") + 1, owner_id=new_id(), lease_until=add_to_noon(99)
    )
    for _ in range(20):
        submit(tenant)

    engine.poll_now()
    assert engine.membership.owner_id == former
    assert set(engine.membership.leases.held) == set(range(8, 16))

    egress.answer()
    engine.poll_now()
    assert get_status(tenant, service_call_id) == "Succeeded"


def test_attempts_of_a_reaped_node_are_repeated_by_another(tenant: Any) -> None:
    service_call_id, _, _dead = start_one_call(tenant)
    with pin_time(add_to_noon(60)):
        egress = FakeEgress()
        next_one = build_engine(egress)
        next_one.poll_once(0)
        next_one.poll_now()
        assert [dict(attempt.headers)["X-Attempt"] for attempt in egress.sent] == ["2"]
    assert list_attempts(tenant, service_call_id)[0].error_kind == "Interrupted"


@pytest.mark.parametrize(
    "gone",
    [True, False],
    ids=["their node is no more", "they are overdue, and their own node does not know them"],
)
def test_many_lost_attempts_are_resolved_one_batch_a_pass_between_heartbeats(
    tenant: Any, manual_engine: ManualEngine, gone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "WATCHDOG_BATCH_SIZE", 2)
    lost = [submit(tenant, timeout_seconds=3600 if gone else 1) for _ in range(5)]
    manual_engine.start()
    with pin_time(add_to_noon(20)):
        (manual_engine.membership.leave if gone else partial(manual_engine.membership.heartbeat, 5))()
        engine = build_engine(FakeEgress())
        if not gone:
            HttpExecution.across_tenants.update(node=engine.membership.owner_id)
        resolved: list[int] = []
        beats: list[int] = []
        monkeypatch.setattr(engine.membership, "heartbeat", beats.append)
        for _ in range(3):
            engine.clock.advance(HEARTBEAT_SECONDS)
            engine.poll_once(0)
            resolved.append(sum(list_attempts(tenant, one)[0].error_kind == "Interrupted" for one in lost))
    assert (resolved, len(beats)) == ([2, 4, 5], 3)


def test_an_engine_does_not_consider_its_own_attempts_lost(tenant: Any) -> None:
    service_call_id, _, engine = start_one_call(tenant, timeout_seconds=1)
    for seconds in range(2, 22, 2):
        engine.clock.advance(max(SWEEP_SECONDS, HEARTBEAT_SECONDS))
        with pin_time(add_to_noon(seconds)):
            engine.poll_once(0)
    assert get_status(tenant, service_call_id) == "Running"
    assert len(engine.in_flight) == 1


def test_overdue_attempts_of_a_node_that_is_alive_are_left_to_it(
    tenant: Any, manual_engine: ManualEngine
) -> None:
    """They may be past their deadline only because the clock was set forward."""
    service_call_id = submit(tenant, timeout_seconds=1)
    manual_engine.start()
    with pin_time(add_to_noon(60)):
        manual_engine.membership.heartbeat(1)
        engine = build_engine(FakeEgress())
        for _ in range(5):
            engine.clock.advance(SWEEP_SECONDS)
            engine.poll_once(0)
    assert get_status(tenant, service_call_id) == "Running"

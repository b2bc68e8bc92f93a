"""`manage.py requeue_stuck` leaves nothing to a dead node, and takes nothing from a live one."""

from __future__ import annotations

from typing import Any

import pytest

from eventservice.db.now import pin_time
from orchestration.engine.recovery import Recovery, recover
from orchestration.states import Delivery
from tests.orchestration.support import ManualEngine, add_to_noon, get_status, submit
from timers.membership import NODE_LEASE, Membership, list_silent_nodes
from timers.models import Node, TimerShard

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]

SILENT = add_to_noon(60)


def recover_within_a_lease(*alive: Membership) -> Recovery:
    """Recover while these nodes send a heartbeat during the wait."""
    slept: list[float] = []

    def wait(seconds: float) -> None:
        slept.append(seconds)
        for node in alive:
            node.heartbeat(0)

    with pin_time(SILENT):
        recovery = recover(list_silent_nodes(), wait)
    assert slept in ([], [NODE_LEASE.total_seconds()])
    return recovery


def count_owned(node: Membership) -> int:
    return TimerShard.objects.filter(owner_id=node.owner_id).count()


def test_a_dead_node_loses_its_shards_and_its_calls_go_on(tenant: Any, manual_engine: ManualEngine) -> None:
    again = submit(tenant, timeout_seconds=3600)
    once = submit(tenant, timeout_seconds=3600, delivery=Delivery.AT_MOST_ONCE)
    manual_engine.start()

    recovery = recover_within_a_lease()

    assert [node.pk for node in recovery.reaped] == [manual_engine.membership.owner_id]
    assert (recovery.locked, recovery.resolved, recovery.overdue) == ([], 2, 0)
    assert count_owned(manual_engine.membership) == Node.objects.count() == 0
    assert (get_status(tenant, again), get_status(tenant, once)) == ("Scheduled", "Failed")


def test_a_node_that_only_waited_for_the_database_keeps_everything(
    tenant: Any, manual_engine: ManualEngine
) -> None:
    service_call_id = submit(tenant, timeout_seconds=1)
    manual_engine.start()

    recovery = recover_within_a_lease(manual_engine.membership)

    # The call is past its deadline by the clock, which may have been set, and it is the node's to resolve.
    assert (recovery.reaped, recovery.locked, recovery.resolved, recovery.overdue) == ([], [], 0, 1)
    assert count_owned(manual_engine.membership) == 16
    assert get_status(tenant, service_call_id) == "Running"


def test_a_node_that_falls_silent_meanwhile_is_not_declared_dead(manual_engine: ManualEngine) -> None:
    with pin_time(SILENT):
        assert recover([], lambda seconds: None).reaped == []
        assert Node.objects.count() == 1


def test_without_a_silent_node_nothing_waits(manual_engine: ManualEngine) -> None:
    recover(list_silent_nodes(), lambda seconds: pytest.fail("it waited"))


def test_a_node_from_before_the_clock_was_set_back_is_declared_dead_by_the_second_look(
    manual_engine: ManualEngine,
) -> None:
    with pin_time(add_to_noon(-3600)):
        silent = list_silent_nodes()
        assert [node.pk for node in silent] == [manual_engine.membership.owner_id]
    with pin_time(add_to_noon(-3500)):
        assert recover(silent, lambda seconds: None).reaped == silent

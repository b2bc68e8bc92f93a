"""A node that stops releases its shards at once, waits for its attempts, and leaves."""

from __future__ import annotations

from typing import Any

import pytest

from tests.orchestration.support import FakeEgress, build_engine, get_status, list_attempts, submit
from timers.models import Node, NodeRole, TimerShard

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]


def test_an_idle_node_leaves_nothing_behind(tenant: Any) -> None:
    egress = FakeEgress()
    engine = build_engine(egress)
    engine.take_shards()
    assert TimerShard.objects.filter(owner_id=engine.membership.owner_id).count() == 16

    engine.stop(grace_seconds=5)

    assert not TimerShard.objects.exclude(owner_id=None).exists()
    assert not Node.objects.exists()
    assert egress.closed


@pytest.mark.parametrize("grace_seconds", [5, 0])
def test_outcomes_that_have_arrived_are_recorded_whatever_the_grace(
    tenant: Any, grace_seconds: float
) -> None:
    service_call_id = submit(tenant)
    egress = FakeEgress()
    engine = build_engine(egress)
    engine.poll_once(0)
    egress.answer()
    engine.stop(grace_seconds)
    assert get_status(tenant, service_call_id) == "Succeeded"
    assert not Node.objects.exists()


def test_the_nodes_row_stays_if_attempts_outlast_the_grace(tenant: Any) -> None:
    service_call_id = submit(tenant)
    engine = build_engine(FakeEgress())
    engine.poll_once(0)
    engine.stop(grace_seconds=0)
    assert get_status(tenant, service_call_id) == "Running"
    assert list_attempts(tenant, service_call_id)[0].finished_at is None
    assert Node.objects.get().owner_id == engine.membership.owner_id
    assert not TimerShard.objects.exclude(owner_id=None).exists()


def test_another_node_takes_over_the_shards_at_once(tenant: Any) -> None:
    first, second = build_engine(FakeEgress()), build_engine(FakeEgress())
    for engine in (first, second):
        engine.take_shards()
    first.take_shards()
    second.take_shards()
    assert 0 < len(second.membership.leases.held) < 16

    first.stop(grace_seconds=0)
    second.take_shards()

    assert len(second.membership.leases.held) == 16


def test_a_node_that_is_reaped_while_it_stops_takes_no_shards_again(tenant: Any) -> None:
    submit(tenant)
    egress = FakeEgress()
    engine = build_engine(egress)
    engine.poll_once(0)
    Node.objects.all().delete()
    roles: list[str] = []

    def collect(timeout: float) -> list[Any]:
        roles.extend(Node.objects.values_list("role", flat=True))
        egress.clock.advance(timeout)
        return []

    egress.collect = collect  # type: ignore[method-assign]
    engine.stop(grace_seconds=0.05)
    assert set(roles) == {NodeRole.LEAVING}

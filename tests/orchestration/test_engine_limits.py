"""Limits on what is in flight: of the engine, of a tenant, and of a host."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest

from eventservice.db.now import pin_time
from eventservice.kernel.ttl_cache import clear_caches
from eventservice.tenants.models import Tenant
from orchestration.commands import RequestSpec
from orchestration.engine import capacity
from tests.orchestration.support import FakeEgress, add_to_noon, build_engine, get_status, submit

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]


def set_max_in_flight(tenant: Any, max_in_flight: int) -> None:
    Tenant.objects.filter(pk=tenant.pk).update(max_in_flight=max_in_flight)
    clear_caches()


def test_an_engine_has_a_limit_of_calls_in_flight(tenant: Any) -> None:
    for _ in range(5):
        submit(tenant)
    egress = FakeEgress()
    engine = build_engine(egress, max_in_flight=3)
    assert engine.poll_now().started == 3
    assert engine.poll_now().started == 0
    egress.answer(0)
    engine.poll_now()
    assert engine.poll_now().started == 1


def test_an_engine_at_its_limit_does_not_spin(tenant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        submit(tenant)
    egress = FakeEgress()
    engine = build_engine(egress, max_in_flight=1)
    engine.poll_once(1)
    engine.watch.announce()
    engine.poll_once(1)
    assert egress.naps[-1] > 0


def test_a_tenant_at_its_limit_does_not_hold_up_others(tenant: Any, intruder: Any) -> None:
    set_max_in_flight(tenant, 2)
    for whose in (tenant, intruder):
        for _ in range(5):
            submit(whose)
    egress = FakeEgress()
    engine = build_engine(egress)
    engine.poll_now()
    assert engine.in_flight.calls.by_tenant == {tenant.tenant_id: 2, intruder.tenant_id: 5}
    egress.answer()
    engine.poll_now()
    engine.poll_now()
    assert engine.in_flight.calls.by_tenant == {tenant.tenant_id: 2}


def test_a_tenant_with_a_limit_of_zero_waits(tenant: Any) -> None:
    set_max_in_flight(tenant, 0)
    submit(tenant)
    assert build_engine(FakeEgress()).poll_now().started == 0


def test_a_host_at_its_limit_does_not_hold_up_others(tenant: Any) -> None:
    for host in ("slow.test", "fine.test"):
        for _ in range(4):
            submit(tenant, request=RequestSpec("GET", f"http://{host}/"))
    engine = build_engine(FakeEgress(), max_per_host=3)
    engine.poll_now()
    assert engine.in_flight.by_host == {"slow.test": 3, "fine.test": 3}
    engine.poll_now()
    assert engine.in_flight.by_host == {"slow.test": 3, "fine.test": 3}


@pytest.mark.parametrize("answers", [1, 3])
def test_a_slow_host_leaves_room_for_the_tenants_other_hosts(tenant: Any, answers: int) -> None:
    """Each response makes room for another call to the slow host, and its queue fills what a pass finds."""
    set_max_in_flight(tenant, 100)
    for _ in range(400):
        submit(tenant, request=build_request_to("slow.test"))
    egress = FakeEgress()
    engine = build_engine(egress, max_batch=20)
    for _ in range(12):
        engine.poll_now()
    answered = iter(range(100))

    def answer() -> None:
        egress.answer(*islice(answered, answers))
        engine.poll_now()

    answer()
    with pin_time(add_to_noon(0.5)):
        waits = submit(tenant, request=build_request_to("fine.test"))
        for _ in range(3):
            answer()
    assert get_status(tenant, waits) == "Running"


def build_request_to(host: str, body: str = "") -> RequestSpec:
    return RequestSpec("POST", f"http://{host}/", {}, body)


def test_a_host_gets_at_most_three_times_the_room_that_is_left(tenant: Any) -> None:
    set_max_in_flight(tenant, 16)
    engine = build_engine(FakeEgress())
    for dead, places in (("one.test", 12), ("another.test", 3)):
        for _ in range(20):
            submit(tenant, request=build_request_to(dead))
        engine.poll_now()
        engine.poll_now()
        assert engine.in_flight.by_host[dead] == places
    fine = submit(tenant, request=build_request_to("fine.test"))
    assert engine.poll_now().started == 1
    assert get_status(tenant, fine) == "Running"


def test_a_tenant_with_a_small_limit_can_use_all_of_it(tenant: Any) -> None:
    set_max_in_flight(tenant, 3)
    for _ in range(5):
        submit(tenant)
    assert build_engine(FakeEgress()).poll_now().started == 3


def test_a_host_at_one_tenants_limit_is_called_for_another_tenant(tenant: Any, intruder: Any) -> None:
    set_max_in_flight(tenant, 4)
    engine = build_engine(FakeEgress())
    for whose in (tenant, intruder):
        for _ in range(5):
            submit(whose)
        engine.poll_now()
    assert engine.in_flight.calls.by_tenant == {tenant.tenant_id: 3, intruder.tenant_id: 5}


def test_due_timers_of_a_tenant_with_a_limit_of_zero_are_not_searched(tenant: Any, intruder: Any) -> None:
    """Otherwise their due timers would fill the batches."""
    set_max_in_flight(tenant, 0)
    for whose in (tenant, intruder):
        submit(whose)
    engine = build_engine(FakeEgress())
    assert engine.poll_now().started == 1
    assert engine.in_flight.find_held_back().tenants == [tenant.tenant_id]
    set_max_in_flight(tenant, 1)
    assert engine.poll_now().started == 1


def test_a_batch_has_a_size_limit(tenant: Any) -> None:
    for _ in range(5):
        submit(tenant)
    engine = build_engine(FakeEgress(), max_batch=2)
    assert [engine.poll_now().started for _ in range(4)] == [2, 2, 1, 0]


def test_a_changed_limit_applies_once_the_profile_is_read_again(tenant: Any) -> None:
    set_max_in_flight(tenant, 1)
    for _ in range(3):
        submit(tenant)
    engine = build_engine(FakeEgress())
    assert engine.poll_now().started == 1
    Tenant.objects.filter(pk=tenant.pk).update(max_in_flight=3)
    assert engine.poll_now().started == 0
    clear_caches()
    assert engine.poll_now().started == 2


LARGE_BODY = "x" * 20_000


def build_request_with(body: str) -> RequestSpec:
    return RequestSpec("POST", "http://target.test/", {}, body)


def test_large_requests_start_a_few_at_a_time_beside_small_ones(
    tenant: Any, intruder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capacity, "MAX_BATCH_BYTES", 50_000)
    for _ in range(5):
        submit(tenant, request=build_request_with(LARGE_BODY))
    small = submit(intruder, request=build_request_with("x"))
    engine = build_engine(FakeEgress())
    assert engine.poll_now().started == 4  # three of the large ones reach the bound
    assert get_status(intruder, small) == "Running"
    assert engine.poll_now().started == 2


def test_a_tenant_has_a_limit_of_bytes_in_flight(
    tenant: Any, intruder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capacity, "MAX_TENANT_BYTES", 30_000)
    for whose in (tenant, intruder):
        for _ in range(3):
            submit(whose, request=build_request_with(LARGE_BODY))
    egress = FakeEgress()
    engine = build_engine(egress)
    engine.poll_now()
    engine.poll_now()
    assert engine.in_flight.calls.by_tenant == {tenant.tenant_id: 2, intruder.tenant_id: 2}
    egress.answer()
    engine.poll_now()
    assert engine.poll_now().started == 2


def test_a_host_with_many_bytes_in_flight_holds_up_only_its_large_requests(
    tenant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capacity, "MAX_TENANT_BYTES", 16 * len(LARGE_BODY))
    for _ in range(40):
        submit(tenant, request=build_request_to("dead.test", LARGE_BODY))
    engine = build_engine(FakeEgress(), max_batch=20)
    engine.poll_now()
    engine.poll_now()
    assert engine.in_flight.by_host == {"dead.test": 12}
    others = [submit(tenant, request=build_request_to("fine.test", body)) for body in ("x", LARGE_BODY)]
    others.append(submit(tenant, request=build_request_to("dead.test", "x")))
    assert engine.poll_now().started == len(others)

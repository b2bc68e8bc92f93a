"""No more is under way than is allowed: in all, of a tenant, to a host."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest

from eventservice.db.now import pin_time
from eventservice.kernel.ttl_cache import clear_caches
from eventservice.tenants.models import Tenant
from orchestration.commands import RequestSpec
from orchestration.engine import capacity
from tests.orchestration.support import FakeEgress, after, build_engine, get_status, submit

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]


def allow(tenant: Any, max_in_flight: int) -> None:
    Tenant.objects.filter(pk=tenant.pk).update(max_in_flight=max_in_flight)
    clear_caches()


def test_in_all(tenant: Any) -> None:
    for _ in range(5):
        submit(tenant)
    egress = FakeEgress()
    engine = build_engine(egress, max_in_flight=3)
    assert engine.poll_now().started == 3
    assert engine.poll_now().started == 0
    egress.answer(0)
    engine.poll_now()
    assert engine.poll_now().started == 1


def test_while_all_places_are_taken_it_does_not_spin(tenant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        submit(tenant)
    egress = FakeEgress()
    engine = build_engine(egress, max_in_flight=1)
    engine.poll_once(1)
    engine.watch.announce()
    engine.poll_once(1)
    assert egress.naps[-1] > 0


def test_of_a_tenant_and_the_other_tenants_go_on(tenant: Any, intruder: Any) -> None:
    allow(tenant, 2)
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


def test_a_tenant_that_may_have_nothing_under_way_waits(tenant: Any) -> None:
    allow(tenant, 0)
    submit(tenant)
    assert build_engine(FakeEgress()).poll_now().started == 0


def test_to_a_host_and_other_hosts_are_called(tenant: Any) -> None:
    for host in ("slow.test", "fine.test"):
        for _ in range(4):
            submit(tenant, request=RequestSpec("GET", f"http://{host}/"))
    engine = build_engine(FakeEgress(), max_per_host=3)
    engine.poll_now()
    assert engine.in_flight.by_host == {"slow.test": 3, "fine.test": 3}
    engine.poll_now()
    assert engine.in_flight.by_host == {"slow.test": 3, "fine.test": 3}


@pytest.mark.parametrize("answers", [1, 3])
def test_a_host_that_is_slow_and_answers_leaves_places_to_the_tenants_other_hosts(
    tenant: Any, answers: int
) -> None:
    """With each answer there is room for another of its calls, whose queue fills what a pass finds."""
    allow(tenant, 100)
    for _ in range(400):
        submit(tenant, request=of_host("slow.test"))
    egress = FakeEgress()
    engine = build_engine(egress, max_batch=20)
    for _ in range(12):
        engine.poll_now()
    answered = iter(range(100))

    def answer() -> None:
        egress.answer(*islice(answered, answers))
        engine.poll_now()

    answer()
    with pin_time(after(0.5)):
        waits = submit(tenant, request=of_host("fine.test"))
        for _ in range(3):
            answer()
    assert get_status(tenant, waits) == "Running"


def of_host(host: str, body: str = "") -> RequestSpec:
    return RequestSpec("POST", f"http://{host}/", {}, body)


def test_a_host_gets_no_more_of_its_tenants_places_than_three_times_what_is_left(tenant: Any) -> None:
    allow(tenant, 16)
    engine = build_engine(FakeEgress())
    for dead, places in (("one.test", 12), ("another.test", 3)):
        for _ in range(20):
            submit(tenant, request=of_host(dead))
        engine.poll_now()
        engine.poll_now()
        assert engine.in_flight.by_host[dead] == places
    fine = submit(tenant, request=of_host("fine.test"))
    assert engine.poll_now().started == 1
    assert get_status(tenant, fine) == "Running"


def test_a_tenant_of_few_places_uses_all_of_them(tenant: Any) -> None:
    allow(tenant, 3)
    for _ in range(5):
        submit(tenant)
    assert build_engine(FakeEgress()).poll_now().started == 3


def test_a_host_at_its_ceiling_for_one_tenant_is_called_for_another(tenant: Any, intruder: Any) -> None:
    allow(tenant, 4)
    engine = build_engine(FakeEgress())
    for whose in (tenant, intruder):
        for _ in range(5):
            submit(whose)
        engine.poll_now()
    assert engine.in_flight.calls.by_tenant == {tenant.tenant_id: 3, intruder.tenant_id: 5}


def test_those_who_may_have_nothing_are_not_looked_for_until_they_may(tenant: Any, intruder: Any) -> None:
    """Else their due timers would fill the batches of the others."""
    allow(tenant, 0)
    for whose in (tenant, intruder):
        submit(whose)
    engine = build_engine(FakeEgress())
    assert engine.poll_now().started == 1
    assert engine.in_flight.find_held_back().tenants == [tenant.tenant_id]
    allow(tenant, 1)
    assert engine.poll_now().started == 1


def test_of_one_batch(tenant: Any) -> None:
    for _ in range(5):
        submit(tenant)
    engine = build_engine(FakeEgress(), max_batch=2)
    assert [engine.poll_now().started for _ in range(4)] == [2, 2, 1, 0]


def test_a_changed_ceiling_counts_once_the_tenants_profile_is_read_again(tenant: Any) -> None:
    allow(tenant, 1)
    for _ in range(3):
        submit(tenant)
    engine = build_engine(FakeEgress())
    assert engine.poll_now().started == 1
    Tenant.objects.filter(pk=tenant.pk).update(max_in_flight=3)
    assert engine.poll_now().started == 0
    clear_caches()
    assert engine.poll_now().started == 2


LARGE_BODY = "x" * 20_000


def of_body(body: str) -> RequestSpec:
    return RequestSpec("POST", "http://target.test/", {}, body)


def test_large_requests_are_begun_a_few_at_a_time_and_small_ones_beside_them(
    tenant: Any, intruder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capacity, "MAX_BATCH_BYTES", 50_000)
    for _ in range(5):
        submit(tenant, request=of_body(LARGE_BODY))
    small = submit(intruder, request=of_body("x"))
    engine = build_engine(FakeEgress())
    assert engine.poll_now().started == 4  # three of the large ones reach the bound
    assert get_status(intruder, small) == "Running"
    assert engine.poll_now().started == 2


def test_a_tenant_has_so_many_bytes_of_large_requests_under_way(
    tenant: Any, intruder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capacity, "MAX_TENANT_BYTES", 30_000)
    for whose in (tenant, intruder):
        for _ in range(3):
            submit(whose, request=of_body(LARGE_BODY))
    egress = FakeEgress()
    engine = build_engine(egress)
    engine.poll_now()
    engine.poll_now()
    assert engine.in_flight.calls.by_tenant == {tenant.tenant_id: 2, intruder.tenant_id: 2}
    egress.answer()
    engine.poll_now()
    assert engine.poll_now().started == 2


def test_small_requests_and_other_hosts_large_ones_go_on_beside_a_host_with_many_bytes_under_way(
    tenant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capacity, "MAX_TENANT_BYTES", 16 * len(LARGE_BODY))
    for _ in range(40):
        submit(tenant, request=of_host("dead.test", LARGE_BODY))
    engine = build_engine(FakeEgress(), max_batch=20)
    engine.poll_now()
    engine.poll_now()
    assert engine.in_flight.by_host == {"dead.test": 12}
    others = [submit(tenant, request=of_host("fine.test", body)) for body in ("x", LARGE_BODY)]
    others.append(submit(tenant, request=of_host("dead.test", "x")))
    assert engine.poll_now().started == len(others)

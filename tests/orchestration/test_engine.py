"""A pass of the engine sends due calls, records outcomes, and counts correctly what is in flight."""

from __future__ import annotations

from typing import Any

import pytest

from eventservice.db.now import pin_time
from eventservice.runtime import wiring
from orchestration.commands import RequestSpec
from orchestration.engine import engine as engine_module
from orchestration.engine.capacity import EngineLimits
from orchestration.engine.engine import MAX_NAP_SECONDS, PassResult
from orchestration.retries import RetryPolicy
from tests.orchestration.support import (
    FakeEgress,
    SteppedEngine,
    add_to_noon,
    build_engine,
    build_response,
    get_status,
    submit,
)

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]


def test_a_due_call_is_sent_in_the_first_pass_and_recorded_in_the_next(tenant: Any) -> None:
    service_call_id = submit(
        tenant, request=RequestSpec("PUT", "http://target.test/x", {}, "text"), timeout_seconds=3
    )
    egress = FakeEgress()
    engine = build_engine(egress)

    assert engine.poll_once(0) == PassResult(started=1, recorded=0)
    (sent,) = egress.sent
    assert (sent.method, sent.url, sent.body, sent.timeout_seconds) == (
        "PUT",
        "http://target.test/x",
        b"text",
        3,
    )
    assert get_status(tenant, service_call_id) == "Running"

    egress.answer()
    assert engine.poll_once(0) == PassResult(started=0, recorded=1)
    assert get_status(tenant, service_call_id) == "Succeeded"


def test_a_call_that_is_not_due_is_not_sent(tenant: Any) -> None:
    submit(tenant, due_at=add_to_noon(10))
    egress = FakeEgress()
    engine = build_engine(egress)
    with pin_time(add_to_noon(9.999)):
        assert engine.poll_now().started == 0
    with pin_time(add_to_noon(10)):
        assert engine.poll_now().started == 1


def test_outcomes_are_recorded_as_they_arrive(tenant: Any) -> None:
    calls = [submit(tenant) for _ in range(3)]
    egress = FakeEgress()
    engine = build_engine(egress)
    engine.poll_once(0)
    egress.answer(1)
    assert engine.poll_once(0).recorded == 1
    assert len(engine.in_flight) == 2
    assert sorted(get_status(tenant, call) for call in calls) == ["Running", "Running", "Succeeded"]


def test_a_retry_has_the_same_key_and_the_next_number(tenant: Any) -> None:
    service_call_id = submit(tenant, retry_policy=RetryPolicy(max_attempts=2, initial_interval=0))
    egress = FakeEgress()
    engine = build_engine(egress)
    engine.poll_once(0)
    egress.answer(status=503)
    engine.poll_once(0)
    engine.poll_now()
    headers = [dict(attempt.headers) for attempt in egress.sent]
    assert [h["X-Attempt"] for h in headers] == ["1", "2"]
    assert {h["Idempotency-Key"] for h in headers} == {str(service_call_id)}


def test_the_counts_of_calls_in_flight_are_right(tenant: Any, intruder: Any) -> None:
    for whose in (tenant, tenant, intruder):
        submit(whose)
    egress = FakeEgress()
    engine = build_engine(egress)
    engine.poll_once(0)
    assert len(engine.in_flight) == 3
    assert engine.in_flight.calls.by_tenant == {tenant.tenant_id: 2, intruder.tenant_id: 1}
    assert engine.in_flight.by_host == {"target.test": 3}

    egress.answer()
    engine.poll_once(0)
    assert not engine.in_flight
    assert not engine.in_flight.calls.by_tenant
    assert not engine.in_flight.by_host


def test_an_idle_engine_naps_until_the_next_call_is_due(tenant: Any) -> None:
    submit(tenant, due_at=add_to_noon(0.2))
    egress = FakeEgress()
    build_engine(egress).poll_once(10)
    assert egress.naps[0] == pytest.approx(0.2)


def test_a_retry_does_not_wait_for_the_next_timer(tenant: Any) -> None:
    """The change watch does not report an engine's own writes, so it has to look again after a retry."""
    submit(tenant, due_at=add_to_noon(3600))
    submit(tenant, retry_policy=RetryPolicy(max_attempts=2, initial_interval=0))
    egress = FakeEgress()
    engine = build_engine(egress)
    engine.poll_once(0)
    engine.poll_once(0)  # nothing is due, and the next timer is far off
    egress.answer(status=503)
    engine.poll_once(0)
    engine.poll_once(0)
    assert len(egress.sent) == 2


def test_a_nap_is_short_even_if_the_next_timer_is_far_off(tenant: Any) -> None:
    """The clock of a machine that was suspended jumps when it wakes."""
    submit(tenant, due_at=add_to_noon(3600))
    egress = FakeEgress()
    build_engine(egress).poll_once(10_000)
    assert egress.naps[0] <= MAX_NAP_SECONDS


@pytest.mark.parametrize("poll_seconds", [0.5, 1.0, 10.0])
def test_an_engine_that_is_told_of_nothing_looks_again_after_the_poll_interval(
    tenant: Any, poll_seconds: float
) -> None:
    egress = FakeEgress()
    engine = SteppedEngine(egress, EngineLimits(), poll_seconds)
    engine.poll_once(0)
    begun = engine.clock.now
    submit(tenant)  # by another process, and no notification comes
    while not engine.poll_once(100).started:
        assert engine.clock.now - begun <= poll_seconds + 1e-6
    assert engine.clock.now - begun == pytest.approx(poll_seconds)


def test_a_long_poll_interval_delays_no_heartbeat_and_no_timer_that_is_known(tenant: Any) -> None:
    egress = FakeEgress()
    engine = SteppedEngine(egress, EngineLimits(), 60.0)
    submit(tenant, due_at=add_to_noon(2.5))
    while engine.clock.now < 1002.5 - 1e-6:
        assert engine.poll_once(100).started == 0
    assert max(egress.naps) <= MAX_NAP_SECONDS
    with pin_time(add_to_noon(2.5)):
        assert engine.poll_once(0).started == 1


def test_the_setting_is_the_poll_interval_of_the_engine(
    db: None, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    egress = FakeEgress()
    settings.ENGINE_POLL_SECONDS = 7.5
    monkeypatch.setattr(wiring, "start_egress", lambda: egress)
    assert wiring.build_engine().poll_seconds == 7.5


def test_many_outcomes_are_recorded_in_batches(tenant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "MAX_RECORDED_AT_ONCE", 2)
    calls = [submit(tenant) for _ in range(5)]
    egress = FakeEgress()
    engine = build_engine(egress)
    engine.poll_once(0)
    egress.answer()
    assert [engine.poll_once(10).recorded for _ in range(3)] == [2, 2, 1]
    assert egress.naps[-2:] == [0.0, 0.0]
    assert {get_status(tenant, call) for call in calls} == {"Succeeded"}


def test_large_outcomes_are_recorded_in_smaller_batches(tenant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "MAX_RECORDED_BYTES_AT_ONCE", 150)
    for _ in range(5):
        submit(tenant)
    egress = FakeEgress()
    engine = build_engine(egress)
    engine.poll_once(0)
    egress.arrived += [build_response(attempt.key, body=b"x" * 100) for attempt in egress.sent]
    assert [engine.poll_once(0).recorded for _ in range(3)] == [2, 2, 1]

"""A due call becomes Running, and its attempt is recorded before it is sent."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from django.db import transaction

from eventservice.db.now import pin_time
from orchestration import lifecycle
from orchestration.commands import RequestSpec
from orchestration.lifecycle import RECORDING_GRACE
from orchestration.retries import RetryPolicy
from tests.orchestration.support import (
    ManualEngine,
    add_to_noon,
    build_error,
    find_timer,
    get_call,
    get_status,
    list_attempts,
    list_event_types,
    list_events,
    submit,
)

pytestmark = pytest.mark.django_db


def test_a_started_call_has_its_attempt_and_a_deadline(
    manual_engine: ManualEngine, tenant: Any, at_noon: datetime
) -> None:
    service_call_id = submit(tenant, timeout_seconds=7.5)

    started = manual_engine.start_one()

    call = get_call(tenant, service_call_id)
    assert (call.status, call.attempt, call.execution_id) == ("Running", 1, started.key.execution_id)
    assert call.started_at == at_noon
    assert call.deadline_at == add_to_noon(7.5) + RECORDING_GRACE
    timer = find_timer(tenant, service_call_id)
    assert timer is not None
    assert timer.state == "Reached"


def test_a_started_call_has_all_that_its_attempt_needs(manual_engine: ManualEngine, tenant: Any) -> None:
    request = RequestSpec("PUT", "http://target.test/x", {"A": "b"}, {"n": 1})
    service_call_id = submit(tenant, request=request, timeout_seconds=3.0)
    started = manual_engine.start_one()
    assert (started.key.tenant_id, started.key.service_call_id) == (tenant.tenant_id, service_call_id)
    assert (started.attempt, started.host, started.timeout_seconds) == (1, "target.test", 3.0)
    assert (started.request.method, started.request.body_text) == ("PUT", '{"n":1}')


def test_the_attempts_log_row_is_open_and_names_the_node(
    manual_engine: ManualEngine, tenant: Any, at_noon: datetime
) -> None:
    service_call_id = submit(
        tenant, request=RequestSpec("PUT", "http://target.test/x", {"X-Api-Key": "s3cret"}, "text")
    )
    started = manual_engine.start_one()
    (row,) = list_attempts(tenant, service_call_id)
    assert (row.execution_id, row.attempt, row.node) == (
        started.key.execution_id,
        1,
        manual_engine.membership.owner_id,
    )
    assert (row.started_at, row.finished_at) == (at_noon, None)
    assert (row.request_method, row.request_url, row.request_body) == ("PUT", "http://target.test/x", "text")
    assert row.request_headers == {"X-Api-Key": "••••••"}


def test_starting_appends_two_events(manual_engine: ManualEngine, tenant: Any) -> None:
    service_call_id = submit(tenant)
    started = manual_engine.start_one()
    reached, running = list_events(tenant, service_call_id)[2:]
    assert (reached.event_type, running.event_type) == ("DueTimeReached", "ServiceCallRunning")
    assert (running.event_id, running.causation_id) == (started.key.execution_id, reached.event_id)
    assert running.event_payload == {
        "attempt": 1,
        "executionId": str(started.key.execution_id),
        "node": str(manual_engine.membership.owner_id),
    }


def test_a_later_attempt_has_the_next_number_and_keeps_the_first_start(
    manual_engine: ManualEngine, tenant: Any, at_noon: datetime
) -> None:
    service_call_id = submit(tenant, retry_policy=RetryPolicy(max_attempts=3, initial_interval=1))
    first = manual_engine.start_one()
    manual_engine.finish((first, build_error()))

    with pin_time(add_to_noon(10)):
        second = manual_engine.start_one()

    call = get_call(tenant, service_call_id)
    assert (call.attempt, call.started_at) == (2, at_noon)
    assert second.key.execution_id != first.key.execution_id
    assert [row.started_at for row in list_attempts(tenant, service_call_id)] == [at_noon, add_to_noon(10)]


def test_a_batch_of_many_tenants_starts_together(
    manual_engine: ManualEngine, tenant: Any, intruder: Any
) -> None:
    expected = {(whose.tenant_id, submit(whose)) for whose in (tenant, intruder) for _ in range(5)}
    started = manual_engine.start()
    assert {(call.key.tenant_id, call.key.service_call_id) for call in started} == expected
    assert len({call.key.execution_id for call in started}) == 10
    assert all(
        len(list_event_types(whose, call)) == 4
        for whose in (tenant, intruder)
        for t, call in expected
        if t == whose.tenant_id
    )


def test_a_call_that_was_canceled_after_its_timer_was_read_is_skipped(
    manual_engine: ManualEngine, tenant: Any
) -> None:
    gone, stays = submit(tenant), submit(tenant)
    with transaction.atomic():
        due = manual_engine.poller.claim_due(10)
        lifecycle.cancel(tenant.tenant_id, gone)
        started = lifecycle.start(due, manual_engine.membership.owner_id)

    assert [call.key.service_call_id for call in started] == [stays]
    assert get_status(tenant, gone) == "Canceled"
    assert list_attempts(tenant, gone) == []


def test_nothing_is_started_twice(manual_engine: ManualEngine, tenant: Any) -> None:
    submit(tenant)
    assert len(manual_engine.start()) == 1
    assert manual_engine.start() == []

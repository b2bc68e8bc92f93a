"""A call whose time has come becomes Running, with an attempt that is on record before it is sent."""

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
    Hand,
    after,
    call_of,
    errored,
    event_types,
    events_of,
    log_of,
    status_of,
    submit,
    timer_of,
)

pytestmark = pytest.mark.django_db


def test_the_call_knows_its_attempt_and_when_it_must_have_ended(
    hand: Hand, tenant: Any, at_noon: datetime
) -> None:
    service_call_id = submit(tenant, timeout_seconds=7.5)

    started = hand.start_one()

    call = call_of(tenant, service_call_id)
    assert (call.status, call.attempt, call.execution_id) == ("Running", 1, started.key.execution_id)
    assert call.started_at == at_noon
    assert call.deadline_at == after(7.5) + RECORDING_GRACE
    timer = timer_of(tenant, service_call_id)
    assert timer is not None
    assert timer.state == "Reached"


def test_what_is_started_has_all_that_its_attempt_needs(hand: Hand, tenant: Any) -> None:
    request = RequestSpec("PUT", "http://target.test/x", {"A": "b"}, {"n": 1})
    service_call_id = submit(tenant, request=request, timeout_seconds=3.0)
    started = hand.start_one()
    assert (started.key.tenant_id, started.key.service_call_id) == (tenant.tenant_id, service_call_id)
    assert (started.attempt, started.host, started.timeout_seconds) == (1, "target.test", 3.0)
    assert (started.request.method, started.request.body_text) == ("PUT", '{"n":1}')


def test_its_log_row_is_open_and_names_the_node(hand: Hand, tenant: Any, at_noon: datetime) -> None:
    service_call_id = submit(
        tenant, request=RequestSpec("PUT", "http://target.test/x", {"X-Api-Key": "s3cret"}, "text")
    )
    started = hand.start_one()
    (row,) = log_of(tenant, service_call_id)
    assert (row.execution_id, row.attempt, row.node) == (
        started.key.execution_id,
        1,
        hand.membership.owner_id,
    )
    assert (row.started_at, row.finished_at) == (at_noon, None)
    assert (row.request_method, row.request_url, row.request_body) == ("PUT", "http://target.test/x", "text")
    assert row.request_headers == {"X-Api-Key": "••••••"}


def test_two_events_lead_from_the_due_time_to_the_attempt(hand: Hand, tenant: Any) -> None:
    service_call_id = submit(tenant)
    started = hand.start_one()
    reached, running = events_of(tenant, service_call_id)[2:]
    assert (reached.event_type, running.event_type) == ("DueTimeReached", "ServiceCallRunning")
    assert (running.event_id, running.causation_id) == (started.key.execution_id, reached.event_id)
    assert running.event_payload == {
        "attempt": 1,
        "executionId": str(started.key.execution_id),
        "node": str(hand.membership.owner_id),
    }


def test_a_later_attempt_counts_on_and_keeps_the_first_start(
    hand: Hand, tenant: Any, at_noon: datetime
) -> None:
    service_call_id = submit(tenant, retry_policy=RetryPolicy(max_attempts=3, initial_interval=1))
    first = hand.start_one()
    hand.finish((first, errored()))

    with pin_time(after(10)):
        second = hand.start_one()

    call = call_of(tenant, service_call_id)
    assert (call.attempt, call.started_at) == (2, at_noon)
    assert second.key.execution_id != first.key.execution_id
    assert [row.started_at for row in log_of(tenant, service_call_id)] == [at_noon, after(10)]


def test_a_batch_of_many_tenants_starts_together(hand: Hand, tenant: Any, intruder: Any) -> None:
    expected = {(whose.tenant_id, submit(whose)) for whose in (tenant, intruder) for _ in range(5)}
    started = hand.start()
    assert {(call.key.tenant_id, call.key.service_call_id) for call in started} == expected
    assert len({call.key.execution_id for call in started}) == 10
    assert all(
        len(event_types(whose, call)) == 4
        for whose in (tenant, intruder)
        for t, call in expected
        if t == whose.tenant_id
    )


def test_a_call_that_was_cancelled_since_its_timer_was_read_is_left_out(hand: Hand, tenant: Any) -> None:
    gone, stays = submit(tenant), submit(tenant)
    with transaction.atomic():
        due = hand.poller.claim_due(10)
        lifecycle.cancel(tenant.tenant_id, gone)
        started = lifecycle.start(due, hand.membership.owner_id)

    assert [call.key.service_call_id for call in started] == [stays]
    assert status_of(tenant, gone) == "Canceled"
    assert log_of(tenant, gone) == []


def test_nothing_is_started_twice(hand: Hand, tenant: Any) -> None:
    submit(tenant)
    assert len(hand.start()) == 1
    assert hand.start() == []

"""Submitting stores a call with its tags, timer and first events, or nothing."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext

from eventservice.db import errors
from eventservice.kernel.errors import Conflict, DomainError, Invalid, NotFound
from eventservice.kernel.ids import new_id
from eventservice.kernel.sharding import compute_shard
from eventservice.tenants.models import Tenant
from execution.url_rules import BadUrl
from orchestration import lifecycle
from orchestration.commands import RequestSpec
from orchestration.models import ServiceCall, ServiceCallTag
from orchestration.retries import RetryPolicy
from tests.orchestration.support import (
    UNQUOTED,
    add_to_noon,
    build_command,
    find_timer,
    get_call,
    list_events,
    read_all_rows,
    submit,
)

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]

SOME_ID = uuid.UUID(int=7)


def test_a_call_without_a_due_time_is_due_now(tenant: Any, at_noon: datetime) -> None:
    call = get_call(tenant, submit(tenant))
    assert (call.status, call.attempt, call.execution_id, call.next_seq) == ("Scheduled", 0, None, 3)
    assert call.submitted_at == call.due_at == at_noon
    assert call.started_at is call.finished_at is call.outcome_meta is None


def test_the_call_is_stored_as_submitted(tenant: Any) -> None:
    policy = RetryPolicy(max_attempts=4, initial_interval=1.5)
    request = RequestSpec(
        "PUT", "https://Shop.test:8443/a?b=c", {"Accept": "text/plain"}, {"n": [1, None, "ü"]}
    )
    call = get_call(
        tenant, submit(tenant, name="Grüße", request=request, due_at=add_to_noon(60), retry_policy=policy)
    )

    assert (call.name, call.host, call.due_at) == ("Grüße", "shop.test", add_to_noon(60))
    assert call.request_spec == {
        "method": "PUT",
        "url": "https://Shop.test:8443/a?b=c",
        "headers": {"Accept": "text/plain"},
        "body": {"n": [1, None, "ü"]},
    }
    assert RetryPolicy.from_stored(call.retry_policy) == policy


def test_the_timer_has_the_calls_due_time_shard_and_host(tenant: Any, at_noon: datetime) -> None:
    service_call_id = submit(tenant, due_at=add_to_noon(60))
    timer = find_timer(tenant, service_call_id)
    assert timer is not None
    assert (timer.state, timer.due_at, timer.registered_at) == ("Scheduled", add_to_noon(60), at_noon)
    assert timer.shard_id == compute_shard(tenant.tenant_id, str(service_call_id), 16)
    assert timer.host == "target.test"


def test_a_durable_timers_shard_is_computed_from_its_id(tenant: Any) -> None:
    timer = find_timer(tenant, submit(tenant, external_id="order-1"))
    assert timer is not None
    assert timer.shard_id == compute_shard(tenant.tenant_id, "order-1", 16)


def test_submitting_appends_two_events_the_second_caused_by_the_first(tenant: Any) -> None:
    correlation_id = new_id()
    service_call_id = submit(
        tenant, due_at=add_to_noon(60), tags=frozenset({"b", "a"}), correlation_id=correlation_id
    )
    submitted, scheduled = list_events(tenant, service_call_id)

    assert (submitted.event_type, scheduled.event_type) == ("ServiceCallSubmitted", "ServiceCallScheduled")
    assert (submitted.causation_id, scheduled.causation_id) == (None, submitted.event_id)
    assert {submitted.correlation_id, scheduled.correlation_id} == {correlation_id}
    assert submitted.event_payload["tags"] == ["a", "b"]
    assert submitted.event_payload["dueAt"] == scheduled.event_payload["dueAt"] == "2026-03-01T12:01:00.000Z"


def test_events_have_times_in_utc(tenant: Any) -> None:
    eastern = add_to_noon(60).astimezone(timezone(timedelta(hours=-5)))
    _, scheduled = list_events(tenant, submit(tenant, due_at=eastern))
    assert scheduled.event_payload["dueAt"] == "2026-03-01T12:01:00.000Z"


def test_a_batch_may_mix_tenants(tenant: Any, intruder: Any) -> None:
    commands = [
        build_command(whose, name=str(n), tags=frozenset({"t"}))
        for n, whose in enumerate([tenant, intruder] * 3)
    ]

    results = lifecycle.submit(commands)

    assert [r.service_call_id for r in results] == [c.service_call_id for c in commands]
    for whose in (tenant, intruder):
        mine = [c.service_call_id for c in commands if c.tenant_id == whose.tenant_id]
        stored = ServiceCall.objects.for_tenant(whose.tenant_id)
        assert sorted(stored.values_list("service_call_id", flat=True)) == sorted(mine)
        assert ServiceCallTag.objects.for_tenant(whose.tenant_id).count() == 3
        assert all(len(list_events(whose, service_call_id)) == 2 for service_call_id in mine)


def test_clients_may_choose_ids_and_two_tenants_the_same_one(tenant: Any, intruder: Any) -> None:
    given = new_id()
    assert submit(tenant, service_call_id=given) == submit(intruder, service_call_id=given) == given


@pytest.mark.parametrize(
    "taken", [{"service_call_id": SOME_ID}, {"external_id": "order-1"}], ids=lambda taken: str(*taken)
)
def test_an_id_that_is_taken_is_a_conflict(tenant: Any, taken: dict[str, Any]) -> None:
    submit(tenant, **taken)
    before = read_all_rows()
    with pytest.raises(Conflict) as refused:
        lifecycle.submit([build_command(tenant), build_command(tenant, name="other", **taken)])
    assert refused.value.code == "already_exists"
    assert read_all_rows() == before


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"namespace": "nowhere"}, Invalid),
        ({"request": RequestSpec("POST", "ftp://target.test/")}, BadUrl),
        ({"tenant_id": SOME_ID}, NotFound),
    ],
    ids=["namespace", "url", "tenant"],
)
def test_a_batch_with_a_wrong_command_stores_nothing(
    tenant: Tenant, wrong: dict[str, Any], error: type[Exception]
) -> None:
    wrong_one = replace(build_command(tenant), **wrong)
    before = read_all_rows()
    with pytest.raises(error):
        lifecycle.submit([build_command(tenant), wrong_one])
    assert read_all_rows() == before


def test_a_refused_command_affects_no_other_and_only_its_chunk_is_stored_one_by_one(tenant: Tenant) -> None:
    submit(tenant, service_call_id=SOME_ID)
    submit(tenant, idempotency_key="used")
    commands = [build_command(tenant) for _ in range(200)]
    commands[40] = build_command(tenant, service_call_id=SOME_ID)
    commands[41] = build_command(tenant, idempotency_key="used", name="other")
    commands[7] = commands[199] = build_command(tenant, idempotency_key="twice")
    with CaptureQueriesContext(connection) as queries:
        results = lifecycle.submit_each(commands)
    told = [result.code if isinstance(result, DomainError) else result.service_call_id for result in results]
    expected: list[Any] = [one.service_call_id for one in commands]
    expected[40:42] = ["already_exists", "idempotency_conflict"]
    assert told == expected
    stored = ServiceCall.objects.for_tenant(tenant.tenant_id)
    assert stored.count() == 2 + 200 - 2 - 1
    assert sum("INTO service_calls " in query["sql"].translate(UNQUOTED) for query in queries) < 100


@pytest.mark.django_db(transaction=True)
def test_a_batch_with_a_refused_command_is_repeated_after_a_deadlock(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(tenant, service_call_id=SOME_ID)
    inserts = iter(range(100))

    def deadlock(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        # After the batch as a whole, and after its first piece.
        if sql.translate(UNQUOTED).startswith("INSERT INTO service_calls ") and next(inserts) == 4:
            raise OperationalError("deadlock")
        return execute(sql, params, many, context)

    monkeypatch.setattr(errors, "is_deadlock", lambda error: error.args == ("deadlock",))
    with connection.execute_wrapper(deadlock):
        results = lifecycle.submit_each(
            [build_command(tenant, service_call_id=SOME_ID), build_command(tenant), build_command(tenant)]
        )
    assert next(inserts) > 5
    assert [isinstance(result, DomainError) for result in results] == [True, False, False]
    assert ServiceCall.objects.for_tenant(tenant.tenant_id).count() == 3

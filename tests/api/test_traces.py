"""The trace of a correlation id: its calls with their timers, attempts, events and replays, of one tenant, in pages."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from eventservice.db.bounded_count import MAX_COUNTED
from eventservice.db.now import pin_time
from eventservice.kernel.ids import new_id
from eventservice.tenants.models import ApiKey
from execution.outcome import ErrorKind
from orchestration import lifecycle
from orchestration.queries import traces
from orchestration.retries import RetryPolicy
from outbox.models import OutboxEvent
from tests.api.conftest import Api, build_submission, create_api, get_errors
from tests.factories import HttpExecutionFactory, OutboxEventFactory, ServiceCallFactory
from tests.orchestration.support import (
    ManualEngine,
    add_to_noon,
    build_command,
    build_error,
    build_response,
    submit,
)

pytestmark = pytest.mark.django_db

CORRELATION = "01900000-0000-7000-8000-00000000abcd"
HEADERS = {"X-Correlation-Id": CORRELATION}


def submit_traced(api: Api, **changes: Any) -> Any:
    response = api.post("/service-calls", build_submission(**changes), headers=HEADERS)
    assert response.status_code == 202, response.content
    return response.json()


def get_trace(api: Api, query: str = "", correlation_id: object = CORRELATION) -> Any:
    response = api.get(f"/traces/{correlation_id}{query}")
    assert response.status_code == 200, response.content
    return response.json()


def walk_trace(api: Api, limit: int) -> Iterator[Any]:
    query = f"?limit={limit}"
    while True:
        page = get_trace(api, query)
        yield page
        if page["nextCursor"] is None:
            return
        query = f"?limit={limit}&cursor={page['nextCursor']}"


def test_a_trace_has_the_calls_of_one_correlation_id(acme: Api, at_noon: datetime) -> None:
    first = submit_traced(acme, name="first", tags=["a"])
    with pin_time(add_to_noon(1)):
        second = submit_traced(acme, name="second")
    acme.submit(name="of another request")
    acme.post(f"/service-calls/{second['serviceCallId']}/cancel")
    trace = get_trace(acme)
    assert [call["name"] for call in trace["items"]] == ["first", "second"]
    header = {name: value for name, value in trace.items() if name != "items"}
    assert header == {
        "tenantId": str(acme.tenant.tenant_id),
        "correlationId": CORRELATION,
        "callCount": 2,
        "byStatus": {"Scheduled": 1, "Running": 0, "Succeeded": 0, "Failed": 0, "Canceled": 1},
        "firstSubmittedAt": "2026-03-01T12:00:00.000Z",
        "lastFinishedAt": "2026-03-01T12:00:00.000Z",
        "ended": False,
        "nextCursor": None,
    }
    (listed,) = acme.get("/service-calls?name=first").json()["items"]
    call = trace["items"][0]
    assert {name: call[name] for name in listed} == listed
    assert call["timer"] == {
        "state": "Scheduled",
        "dueAt": "2026-03-01T13:00:00.000Z",
        "registeredAt": "2026-03-01T12:00:00.000Z",
        "reachedAt": None,
    }
    assert (call["serviceCallId"], call["executions"], call["replays"]) == (first["serviceCallId"], [], [])
    assert trace["items"][1]["timer"] is None


def test_a_call_has_its_attempts_and_its_events_with_their_causes(
    acme: Api, manual_engine: ManualEngine
) -> None:
    made = submit(
        acme.tenant,
        correlation_id=uuid.UUID(CORRELATION),
        retry_policy=RetryPolicy(max_attempts=3, initial_interval=0),
    )
    manual_engine.finish((manual_engine.start_one(), build_error(kind=ErrorKind.TIMEOUT)))
    with pin_time(add_to_noon(5)):
        started = manual_engine.start_one()
        manual_engine.finish((started, build_response(started, 201)))
    OutboxEvent.objects.for_tenant(acme.tenant.tenant_id).filter(aggregate_seq__lte=2).update(
        published_at=add_to_noon(9)
    )
    trace = get_trace(acme)
    (call,) = trace["items"]
    assert (call["serviceCallId"], call["status"], trace["ended"]) == (str(made), "Succeeded", True)
    assert [
        (one["attempt"], one["status"], one["errorKind"], one["latencyMs"], one["finishedAt"])
        for one in call["executions"]
    ] == [
        (1, None, "Timeout", 5.0, "2026-03-01T12:00:00.000Z"),
        (2, 201, None, 12.3, "2026-03-01T12:00:05.000Z"),
    ]
    assert (call["timer"]["state"], call["timer"]["reachedAt"]) == ("Reached", "2026-03-01T12:00:05.000Z")
    events = call["events"]
    assert [(event["seq"], event["type"]) for event in events] == [
        (1, "ServiceCallSubmitted"), (2, "ServiceCallScheduled"), (3, "DueTimeReached"), (4, "ServiceCallRunning"),
        (5, "ServiceCallRescheduled"), (6, "DueTimeReached"), (7, "ServiceCallRunning"), (8, "ServiceCallSucceeded"),
    ]  # fmt: skip
    assert (call["eventCount"], events[0]["causationId"], events[1]["causationId"]) == (
        8,
        None,
        events[0]["id"],
    )
    assert [event["state"] for event in events] == ["Published"] * 2 + ["Waiting"] * 6
    assert [event["publishedAt"] for event in events[1:3]] == ["2026-03-01T12:00:09.000Z", None]


def test_an_event_that_is_not_published_says_why(acme: Api) -> None:
    call = ServiceCallFactory(tenant_id=acme.tenant.tenant_id, correlation_id=CORRELATION, next_seq=5)
    states: dict[str, dict[str, Any]] = {
        "Retrying": {"attempts": 2},
        "Parked": {"attempts": 5, "parked_at": add_to_noon(1)},
        "Held": {"parked_at": add_to_noon(1)},
        "Skipped": {"attempts": 5, "parked_at": add_to_noon(1), "published_at": add_to_noon(2)},
    }
    for seq, columns in enumerate(states.values(), 1):
        key = {"tenant_id": call.tenant_id, "aggregate_id": call.service_call_id, "aggregate_seq": seq}
        OutboxEventFactory(**key, **columns)
    events = get_trace(acme)["items"][0]["events"]
    assert [(event["state"], event["publishedAt"]) for event in events] == [(one, None) for one in states]


def test_a_replay_is_linked_from_the_trace_of_its_origin_and_is_in_a_trace_of_its_own(acme: Api) -> None:
    origin = submit_traced(acme)["serviceCallId"]
    acme.post(f"/service-calls/{origin}/cancel")
    replays = [acme.post(f"/service-calls/{origin}/replay").json() for _ in range(2)]
    (call,) = get_trace(acme)["items"]
    assert call["replays"] == [
        {
            "serviceCallId": one["serviceCallId"],
            "correlationId": one["correlationId"],
            "status": "Scheduled",
            "submittedAt": one["submittedAt"],
        }
        for one in reversed(replays)
    ]
    (replay,) = get_trace(acme, correlation_id=replays[0]["correlationId"])["items"]
    assert (replay["serviceCallId"], replay["replayOf"]) == (replays[0]["serviceCallId"], origin)


def test_a_batch_is_one_trace_in_pages(acme: Api) -> None:
    items = [build_submission(name=f"n{number:02}") for number in range(11)]
    acme.post("/service-calls/batch", {"items": items}, headers=HEADERS)
    pages = list(walk_trace(acme, 4))
    assert [len(page["items"]) for page in pages] == [4, 4, 3]
    found = [call["serviceCallId"] for page in pages for call in page["items"]]
    assert found == sorted(set(found))
    assert len(found) == 11
    assert {page["callCount"] for page in pages} == {11}
    assert all(len(call["events"]) == 2 and call["timer"] for page in pages for call in page["items"])


def test_a_cursor_is_valid_for_its_own_trace_only(acme: Api) -> None:
    for _ in range(2):
        submit_traced(acme)
    cursor = get_trace(acme, "?limit=1")["nextCursor"]
    other = acme.submit()["correlationId"]
    assert list(get_errors(acme.get(f"/traces/{other}?limit=1&cursor={cursor}"))) == ["/query/cursor"]
    assert list(get_errors(acme.get(f"/traces/{CORRELATION}?limit=51"))) == ["/query/limit"]


def test_only_the_last_of_many_attempts_and_events_are_shown(
    acme: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traces, "MAX_ATTEMPTS_OF_CALL", 2)
    monkeypatch.setattr(traces, "MAX_EVENTS_OF_CALL", 3)
    often = ServiceCallFactory(
        tenant_id=acme.tenant.tenant_id, correlation_id=CORRELATION, status="Failed", attempt=5, next_seq=10
    )
    once = ServiceCallFactory(
        tenant_id=acme.tenant.tenant_id, correlation_id=CORRELATION, status="Failed", next_seq=3
    )
    for call, attempts, events in ((often, 5, 9), (once, 1, 2)):
        key = {"tenant_id": call.tenant_id, "service_call_id": call.service_call_id}
        for number in range(attempts, 0, -1):
            HttpExecutionFactory(**key, attempt=number, response_status=500)
        for seq in range(events, 0, -1):
            OutboxEventFactory(tenant_id=call.tenant_id, aggregate_id=call.service_call_id, aggregate_seq=seq)
    shown = {
        call["serviceCallId"]: (
            call["attempts"],
            [one["attempt"] for one in call["executions"]],
            call["eventCount"],
            [event["seq"] for event in call["events"]],
        )
        for call in get_trace(acme)["items"]
    }
    assert shown[str(often.service_call_id)] == (5, [4, 5], 9, [7, 8, 9])
    assert shown[str(once.service_call_id)] == (1, [1], 2, [1, 2])


def test_the_timers_of_very_many_calls_are_found_too(acme: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "MAX_TIMERS", 2)
    for _ in range(4):
        submit_traced(acme)
    assert all(call["timer"]["state"] == "Scheduled" for call in get_trace(acme)["items"])


def test_events_that_are_no_longer_kept_are_still_counted(acme: Api) -> None:
    submit_traced(acme)
    OutboxEvent.objects.for_tenant(acme.tenant.tenant_id).delete()
    (call,) = get_trace(acme)["items"]
    assert (call["events"], call["eventCount"]) == ([], 2)


def test_more_calls_than_are_counted_are_said_to_be_more(acme: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "MAX_COUNTED", 2)
    for _ in range(4):
        submit_traced(acme)
    assert get_trace(acme)["callCount"] == 3
    assert f"More than {MAX_COUNTED:,} count as" in acme.get("/api/v1/openapi.json").content.decode()


def test_a_page_takes_a_fixed_number_of_queries(acme: Api) -> None:
    submit_traced(acme)
    get_trace(acme)
    with CaptureQueriesContext(connection) as few:
        get_trace(acme)
    for _ in range(5):
        submit_traced(acme, tags=["x"])
    with CaptureQueriesContext(connection) as more:
        get_trace(acme)
    assert len(more) == len(few) <= 12


# --- who sees it --------------------------------------------------------------------------------------------------


def test_a_correlation_id_without_calls_is_not_found(acme: Api) -> None:
    read = acme.get("/service-calls", headers=HEADERS)
    assert read["X-Correlation-Id"] == CORRELATION
    response = acme.get(f"/traces/{CORRELATION}")
    assert (response.status_code, response.json()["code"]) == (404, "not_found")
    assert response.json()["detail"] == "No such trace."


def test_a_trace_is_kept_as_long_as_one_of_its_calls(acme: Api) -> None:
    calls = [submit_traced(acme)["serviceCallId"] for _ in range(2)]
    acme("DELETE", f"/service-calls/{calls[0]}")
    assert [call["serviceCallId"] for call in get_trace(acme)["items"]] == [calls[1]]
    acme("DELETE", f"/service-calls/{calls[1]}")
    assert acme.get(f"/traces/{CORRELATION}").status_code == 404


def test_two_tenants_with_the_same_correlation_id_have_a_trace_each(
    acme: Api, intruder: Api, operator: Api
) -> None:
    ours, theirs = submit_traced(acme), submit_traced(intruder, name="theirs")
    # Even calls with the same id are kept apart.
    one = {"service_call_id": new_id(), "correlation_id": uuid.UUID(CORRELATION), "delay": timedelta(hours=1)}
    lifecycle.submit([build_command(api.tenant, **one, name="same id") for api in (acme, intruder)])
    for api, others, name in ((acme, theirs, "theirs"), (intruder, ours, "greet")):
        trace = get_trace(api)
        assert trace["callCount"] == len(trace["items"]) == 2
        assert {call["tenantId"] for call in trace["items"]} == {str(api.tenant.tenant_id)}
        assert others["serviceCallId"] not in str(trace)
        assert name not in {call["name"] for call in trace["items"]}
        assert all(len(call["events"]) == 2 for call in trace["items"])
    assert get_trace(operator) == get_trace(acme)


def test_a_trace_needs_the_scope_read(acme: Api) -> None:
    submit_traced(acme)
    writer = create_api(acme.tenant, [ApiKey.Scope.WRITE])
    assert writer.get(f"/traces/{CORRELATION}").status_code == 403


def test_the_id_of_a_trace_must_be_a_uuid(acme: Api) -> None:
    assert acme.get("/traces/last").status_code == 404

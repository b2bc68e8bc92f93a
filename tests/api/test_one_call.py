"""One call: reading it, changing it, and the actions that its state allows."""

from __future__ import annotations

import threading
import time
import uuid
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from eventservice.db.now import db_now
from eventservice.kernel.machine_slots import reserve_slot
from orchestration import lifecycle
from orchestration.models import ServiceCall
from tests.api.conftest import SPEC, Api, get_errors
from tests.factories import HttpExecutionFactory, set_status

pytestmark = pytest.mark.django_db


@pytest.fixture
def path(acme: Api) -> str:
    return f"/service-calls/{acme.submit(tags=['x'])['serviceCallId']}"


def put_in_state(path: str, status: str) -> None:
    set_status(ServiceCall.across_tenants.filter(service_call_id=path.rsplit("/", 1)[1]), status)


def test_an_unchanged_call_is_not_sent_again(acme: Api, path: str) -> None:
    response = acme.get(path)
    again = acme.get(path, headers={"If-None-Match": f'W/"x", {response["ETag"]}'})
    assert (again.status_code, again.content, again["ETag"]) == (304, b"", response["ETag"])
    acme("PUT", f"{path}/tags/y")
    changed = acme.get(path, headers={"If-None-Match": response["ETag"]})
    assert (changed.status_code, changed.json()["tags"]) == (200, ["x", "y"])


def test_if_none_match_with_a_star_matches_any_call(acme: Api, path: str) -> None:
    assert acme.get(path, headers={"If-None-Match": "*"}).status_code == 304
    assert acme.get(path, headers={"If-None-Match": '"*"'}).status_code == 200
    acme("DELETE", path)
    assert acme.get(path, headers={"If-None-Match": "*"}).status_code == 404


def test_a_call_has_its_timer_and_its_last_attempt(acme: Api, path: str) -> None:
    service_call_id = path.rsplit("/", 1)[1]
    calls = ServiceCall.across_tenants.filter(service_call_id=service_call_id)
    set_status(calls, "Scheduled", attempt=2)
    for attempt in (1, 2):
        HttpExecutionFactory(
            tenant_id=acme.tenant.tenant_id,
            service_call_id=service_call_id,
            attempt=attempt,
            latency_ms=1.32016,
            phases={"connectMs": 0.3, "firstByteMs": 1.2} if attempt == 2 else None,
        )
    call = acme.get(path).json()
    assert call["timer"] == {
        "state": "Scheduled",
        "dueAt": call["dueAt"],
        "registeredAt": call["submittedAt"],
        "reachedAt": None,
    }
    assert (call["lastAttempt"]["attempt"], call["lastAttempt"]["latencyMs"]) == (2, 1.3)
    assert call["lastAttempt"]["phases"] == {"connectMs": 0.3, "firstByteMs": 1.2}
    executions = acme.get(f"{path}/executions?limit=1").json()
    assert [(one["attempt"], one["phases"]) for one in executions["items"]] == [(1, None)]
    rest = acme.get(f"{path}/executions?limit=1&cursor={executions['nextCursor']}").json()
    assert ([one["attempt"] for one in rest["items"]], rest["nextCursor"]) == ([2], None)


def test_a_page_of_attempts_reads_no_more_than_the_page(acme: Api, path: str) -> None:
    key = {"tenant_id": acme.tenant.tenant_id, "service_call_id": path.rsplit("/", 1)[1]}
    for number in range(1, 8):
        HttpExecutionFactory(**key, attempt=number, response_body="x" * number)
    with CaptureQueriesContext(connection) as captured:
        first = acme.get(f"{path}/executions?limit=3").json()
    (read,) = [query["sql"] for query in captured if "response_body" in query["sql"]]
    assert "LIMIT 4" in read
    second = acme.get(f"{path}/executions?limit=3&cursor={first['nextCursor']}").json()
    last = acme.get(f"{path}/executions?limit=3&cursor={second['nextCursor']}").json()
    pages = [[one["attempt"] for one in page["items"]] for page in (first, second, last)]
    assert (pages, last["nextCursor"]) == ([[1, 2, 3], [4, 5, 6], [7]], None)


def test_events_are_listed_in_order_page_by_page(acme: Api, path: str) -> None:
    acme.post(f"{path}/cancel")
    first = acme.get(f"{path}/events?limit=2").json()
    rest = acme.get(f"{path}/events?limit=2&cursor={first['nextCursor']}").json()
    assert [event["seq"] for event in first["items"] + rest["items"]] == [1, 2, 3]
    assert set(first["items"][0]) == {
        "id",
        "type",
        "seq",
        "occurredAt",
        "correlationId",
        "causationId",
        "data",
    }


# --- waiting --------------------------------------------------------------------------------------------------


def test_waiting_ends_with_its_time(acme: Api, path: str) -> None:
    begun = time.monotonic()
    assert acme.get(f"{path}?wait=0.1s").json()["status"] == "Scheduled"
    assert time.monotonic() - begun >= 0.1


def test_a_call_that_has_ended_is_not_waited_for(acme: Api, path: str) -> None:
    acme.post(f"{path}/cancel")
    begun = time.monotonic()
    assert acme.get(f"{path}?wait=20s").json()["status"] == "Canceled"
    assert time.monotonic() - begun < 5


@pytest.mark.django_db(transaction=True)
def test_waiting_ends_when_the_call_does(acme: Api, path: str, elsewhere: Any) -> None:
    waiting = threading.Event()

    def wait() -> Any:
        waiting.set()
        return acme.get(f"{path}?wait=20s").json()["status"]

    answer = elsewhere(wait)
    waiting.wait()
    lifecycle.cancel(acme.tenant.tenant_id, uuid.UUID(path.rsplit("/", 1)[1]))
    assert answer.result(timeout=10) == "Canceled"


def test_without_a_free_waiting_slot_the_response_comes_at_once_with_retry_after(
    acme: Api, path: str, settings: Any
) -> None:
    settings.API_MAX_WAITERS = 1
    with reserve_slot("waiting", settings.API_MAX_WAITERS) as first:
        assert first
        response = acme.get(f"{path}?wait=20s")
        assert (response.json()["status"], response["Retry-After"]) == ("Scheduled", "1")
    assert "Retry-After" not in acme.get(f"{path}?wait=0.1s")


def test_a_wait_that_is_not_a_duration_is_refused(acme: Api, path: str) -> None:
    assert list(get_errors(acme.get(f"{path}?wait=soon&limit=3"))) == ["/query/limit", "/query/wait"]


# --- changing -------------------------------------------------------------------------------------------------


def test_name_tags_and_due_time_can_be_changed(acme: Api, path: str) -> None:
    changed = acme("PATCH", path, {"name": "n", "tags": ["p", "q"], "dueAt": "2031-01-01T00:00:00Z"})
    assert changed.status_code == 200
    call = acme.get(path).json()
    assert call == changed.json()
    assert (call["name"], call["tags"], call["dueAt"]) == ("n", ["p", "q"], "2031-01-01T00:00:00.000Z")
    assert call["timer"]["dueAt"] == call["dueAt"]


def test_a_delay_where_a_time_is_expected_is_explained(acme: Api) -> None:
    path = f"/service-calls/{acme.submit()['serviceCallId']}"
    assert get_errors(acme("PATCH", path, {"delay": "1h"})) == {
        "/delay": "is not a known field: give the time as `dueAt`"
    }


def test_members_that_are_left_out_stay(acme: Api, path: str) -> None:
    before = acme.get(path).json()
    assert acme("PATCH", path, {}).json() == before
    assert acme("PATCH", path, {"tags": []}).json() == {**before, "tags": []}


def test_an_invalid_change_changes_nothing(acme: Api, path: str) -> None:
    before = acme.get(path).json()
    response = acme("PATCH", path, {"name": "", "tags": [1], "dueAt": "x", "status": "Succeeded"})
    assert sorted(get_errors(response)) == ["/dueAt", "/name", "/status", "/tags/0"]
    for name in ("name", "tags", "dueAt"):
        assert set(get_errors(acme("PATCH", path, {name: None}))) == {f"/{name}"}
    assert acme.get(path).json() == before


@pytest.mark.parametrize("status", ["Running", "Succeeded", "Failed", "Canceled"])
def test_only_a_scheduled_call_gets_another_due_time(acme: Api, path: str, status: str) -> None:
    put_in_state(path, status)
    response = acme("PATCH", path, {"name": "other", "dueAt": "2031-01-01T00:00:00Z"})
    assert (response.status_code, response.json()["code"]) == (409, "wrong_state")
    assert acme.get(path).json()["name"] == "greet"
    assert acme("PATCH", path, {"name": "other"}).status_code == 200


TAGS = ["y", "a b", "a/b", "ü🎉", "..", "%", "favorite"]


@pytest.mark.parametrize("tag", TAGS)
def test_adding_and_removing_a_tag_is_idempotent(acme: Api, path: str, tag: str) -> None:
    address = f"{path}/tags/{quote(tag, safe='')}"
    assert [acme("PUT", address).status_code for _ in range(2)] == [204, 204]
    assert acme.get(path).json()["tags"] == sorted(["x", tag])
    assert [acme("DELETE", address).status_code for _ in range(2)] == [204, 204]
    assert acme.get(path).json()["tags"] == ["x"]


@pytest.mark.parametrize("tag", ["%00", "x" * 65, "%20a", "%0A"])
def test_an_invalid_tag_is_refused(acme: Api, path: str, tag: str) -> None:
    assert acme("PUT", f"{path}/tags/{tag}").status_code in (400, 404)
    assert acme.get(path).json()["tags"] == ["x"]


def test_twenty_tags_are_allowed(acme: Api, path: str) -> None:
    acme("PATCH", path, {"tags": [str(n) for n in range(20)]})
    response = acme("PUT", f"{path}/tags/more")
    assert (response.status_code, response.json()["code"]) == (409, "too_many_tags")
    assert acme("PUT", f"{path}/favorite").status_code == 204


def test_a_favorite_is_a_tag(acme: Api, path: str) -> None:
    assert [acme("PUT", f"{path}/favorite").status_code for _ in range(2)] == [204, 204]
    call = acme.get(path).json()
    assert (call["favorite"], call["tags"]) == (True, ["favorite", "x"])
    assert [one["serviceCallId"] for one in acme.get("/service-calls?tag=favorite").json()["items"]] == [
        call["serviceCallId"]
    ]
    assert [acme("DELETE", f"{path}/favorite").status_code for _ in range(2)] == [204, 204]
    assert acme.get(path).json()["favorite"] is False


# --- its life -------------------------------------------------------------------------------------------------

ALLOWED = {
    ("cancel", "Scheduled"): "Canceled",
    ("cancel", "Running"): "Running",
    ("run-now", "Scheduled"): "Scheduled",
    ("replay", "Succeeded"): "Scheduled",
    ("replay", "Failed"): "Scheduled",
    ("replay", "Canceled"): "Scheduled",
}


@pytest.mark.parametrize("action", ["cancel", "run-now", "replay"])
@pytest.mark.parametrize("status", ["Scheduled", "Running", "Succeeded", "Failed", "Canceled"])
def test_the_state_of_a_call_decides_what_can_be_done(acme: Api, path: str, action: str, status: str) -> None:
    put_in_state(path, status)
    before = acme.get(path).json()
    response = acme.post(f"{path}/{action}")
    if (action, status) in ALLOWED:
        assert (response.status_code, response.json()["status"]) == (202, ALLOWED[action, status])
        assert acme.get(response["Location"]).status_code == 200
    else:
        assert (response.status_code, response.json()["code"]) == (409, "wrong_state")
        assert acme.get(path).json() == before


def test_run_now_makes_it_due(acme: Api, path: str) -> None:
    call = acme.post(f"{path}/run-now").json()
    assert call["dueAt"] < acme.submit(delay="1m")["dueAt"]
    assert call["timer"]["dueAt"] == call["dueAt"]


def test_a_replay_sends_the_same_request_and_names_the_original(acme: Api) -> None:
    origin = acme.submit(
        requestSpec={**SPEC, "headers": {"Authorization": "canary", "X-A": "b"}},
        tags=["x", "favorite"],
        idempotencyKey="k",
    )
    path = f"/service-calls/{origin['serviceCallId']}"
    acme.post(f"{path}/cancel")
    made = acme.post(f"{path}/replay").json()
    assert made["serviceCallId"] != origin["serviceCallId"]
    assert (made["replayOf"], made["tags"], made["idempotencyKey"]) == (origin["serviceCallId"], ["x"], None)
    assert made["requestSpec"] == origin["requestSpec"]
    stored = ServiceCall.across_tenants.get(service_call_id=made["serviceCallId"]).request_spec["headers"]
    assert "canary" not in str(stored)


def test_a_replay_with_a_key_is_made_once(acme: Api, path: str) -> None:
    acme.post(f"{path}/cancel")
    answers = [acme.post(f"{path}/replay", headers={"Idempotency-Key": "again"}) for _ in range(2)]
    assert answers[0].json() == answers[1].json()
    assert answers[1]["Idempotent-Replayed"] == "true"


def test_actions_take_no_body(acme: Api, path: str) -> None:
    for action in ("cancel", "run-now", "replay"):
        assert get_errors(acme.post(f"{path}/{action}", {"force": True})) == {
            "": "must be empty: this endpoint takes no body"
        }


@pytest.mark.parametrize("status", ["Scheduled", "Succeeded", "Failed", "Canceled"])
def test_a_deleted_call_is_gone_with_everything_that_belongs_to_it(acme: Api, path: str, status: str) -> None:
    put_in_state(path, status)
    assert acme("DELETE", path).status_code == 204
    for part in ("", "/events", "/executions"):
        assert acme.get(path + part).status_code == 404
    assert acme("DELETE", path).status_code == 404


def test_a_running_call_cannot_be_deleted(acme: Api, path: str) -> None:
    put_in_state(path, "Running")
    assert acme("DELETE", path).json()["code"] == "wrong_state"
    assert acme.get(path).status_code == 200


def test_a_due_time_in_the_past_is_now(acme: Api, path: str) -> None:
    before = db_now()
    call = acme("PATCH", path, {"dueAt": "2020-01-01T00:00:00Z"}).json()
    assert call["dueAt"] >= f"{before - timedelta(milliseconds=1):%Y-%m-%dT%H:%M:%S}"

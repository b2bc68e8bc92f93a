"""Durable timers: set, read, changed and deleted by an id of the caller's choice."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import transaction

from eventservice.kernel.ids import new_id
from eventservice.tenants.directory import declare_namespace
from orchestration import lifecycle
from orchestration.models import ServiceCall
from tests.api.conftest import SPEC, Api, get_errors
from tests.factories import set_status
from timers.port import Timer

pytestmark = pytest.mark.django_db

KEY = {"namespace": "default", "timerId": "order-1"}


def build_timer(**changes: Any) -> dict[str, Any]:
    return {
        "namespace": "default",
        "id": "order-1",
        "executeAt": "2030-01-01T00:00:00Z",
        "callbackUrl": "http://target.test/fire",
        "payload": {"order": 1},
        "retryPolicy": {"maxAttempts": 3, "initialInterval": "30s"},
        "callbackTimeoutSeconds": 5,
        **changes,
    }


def create(api: Api, **changes: Any) -> dict[str, Any]:
    response = api.post("/timers/create", build_timer(**changes))
    assert response.status_code == 200, response.content
    made: dict[str, Any] = response.json()
    return made


def select_calls(api: Api) -> Any:
    return ServiceCall.objects.for_tenant(api.tenant.tenant_id)


def start(api: Api) -> Any:
    """Start the attempt, as the engine does when the timer is due."""
    call = select_calls(api).get(status="Scheduled")
    due = Timer(call.tenant_id, call.service_call_id, call.correlation_id, call.due_at, 0, call.host)
    with transaction.atomic():
        (started,) = lifecycle.start([due], new_id())
    return started


def test_a_timer_is_set_and_can_be_read(acme: Api) -> None:
    made = create(acme)
    assert made["status"] == "Scheduled"
    assert (made["executeAt"], made["payload"]) == ("2030-01-01T00:00:00.000Z", {"order": 1})
    assert acme.post("/timers/get", KEY).json() == made


def test_a_pending_timer_is_overwritten(acme: Api) -> None:
    first = create(acme)
    second = create(
        acme,
        payload=[2],
        executeAt="2031-01-01T00:00:00Z",
        callbackUrl="http://other.test/",
        retryPolicy=None,
    )
    assert second["serviceCallId"] == first["serviceCallId"]
    assert (second["payload"], second["executeAt"][:4], second["retryPolicy"]) == ([2], "2031", None)
    assert select_calls(acme).get().host == "other.test"
    call = acme.get(f"/service-calls/{first['serviceCallId']}").json()
    assert call["timer"]["dueAt"] == second["executeAt"]
    assert call["requestSpec"]["body"]["executeAt"] == second["executeAt"]


def test_the_callback_contains_the_number_of_the_attempt(acme: Api) -> None:
    create(acme)
    assert start(acme).request.body == {
        "namespace": "default",
        "timerId": "order-1",
        "payload": {"order": 1},
        "executeAt": "2030-01-01T00:00:00.000Z",
        "attempt": 1,
    }
    set_status(select_calls(acme), "Scheduled", attempt=4)
    assert start(acme).request.body["attempt"] == 5


def test_a_timer_that_has_been_sent_is_replaced_by_a_new_call(acme: Api) -> None:
    first = create(acme)
    set_status(select_calls(acme), "Scheduled", attempt=1)
    second = create(acme, payload="new")
    assert second["serviceCallId"] != first["serviceCallId"]
    assert acme.get(f"/service-calls/{first['serviceCallId']}").json()["status"] == "Canceled"
    assert acme.post("/timers/get", KEY).json() == second


def test_a_running_timer_cannot_be_changed(acme: Api) -> None:
    create(acme)
    start(acme)
    for action, body in (("create", build_timer()), ("update", {**KEY, "payload": 1})):
        response = acme.post(f"/timers/{action}", body)
        assert (response.status_code, response.json()["code"]) == (409, "wrong_state")


def test_requests_for_its_call_move_the_next_attempt_of_a_timer_or_cancel_it(acme: Api) -> None:
    timer = create(acme)
    path = f"/service-calls/{timer['serviceCallId']}"
    assert acme("PATCH", path, {"dueAt": "2031-06-01T08:00:00Z"}).status_code == 200
    moved = acme.post("/timers/get", KEY).json()
    assert (moved["executeAt"], moved["dueAt"]) == (timer["executeAt"], "2031-06-01T08:00:00.000Z")
    assert acme.post(f"{path}/run-now").status_code == 202
    moved = acme.post("/timers/get", KEY).json()
    assert moved["executeAt"] == timer["executeAt"]
    assert moved["dueAt"] < "2031"
    assert acme.post(f"{path}/cancel").status_code == 202
    assert acme.post("/timers/get", KEY).status_code == 404


def test_a_timer_id_where_an_id_is_expected_is_explained(acme: Api) -> None:
    document = build_timer(timerId="order-1", payload="x")
    del document["id"]
    assert get_errors(acme.post("/timers/create", document)) == {
        "/id": "is required",
        "/timerId": "is not a known field: here it is `id`",
    }
    for action in ("get", "update", "delete"):
        assert get_errors(acme.post(f"/timers/{action}", {"id": "order-1"})) == {
            "/id": "is not a known field: here it is `timerId`",
            "/timerId": "is required",
        }


@pytest.mark.parametrize(
    ("action", "body"),
    [("create", build_timer(payload="new")), ("update", {**KEY, "payload": "new"}), ("delete", KEY)],
)
def test_an_idempotency_key_is_refused(acme: Api, action: str, body: Any) -> None:
    made = create(acme)
    refused = acme.post(f"/timers/{action}", body, headers={"Idempotency-Key": "order-1"})
    rule = "has no effect here: the id of the timer identifies it"
    assert get_errors(refused) == {"/headers/Idempotency-Key": rule}
    assert acme.post("/timers/get", KEY).json() == made


@pytest.mark.parametrize("status", ["Succeeded", "Failed", "Canceled"])
def test_the_id_of_an_ended_timer_can_be_used_again(acme: Api, status: str) -> None:
    create(acme)
    set_status(select_calls(acme), status)
    found = acme.post("/timers/get", KEY)
    assert found.status_code == 404 if status == "Canceled" else found.json()["status"] == status
    for action, body in (("update", {**KEY, "payload": 1}), ("delete", KEY)):
        refused = acme.post(f"/timers/{action}", body)
        assert (refused.status_code, refused.json()["code"]) == (404, "not_found")
        assert refused.json()["detail"] == "There is no pending timer with this id."
    assert create(acme)["status"] == "Scheduled"
    assert select_calls(acme).count() == 2


CHANGES = {
    "executeAt": "2032-01-01T00:00:00.000Z",
    "callbackUrl": "http://other.test/x",
    "payload": None,
    "retryPolicy": None,
    "callbackTimeoutSeconds": 9.0,
}


@pytest.mark.parametrize("name", CHANGES)
def test_each_member_of_a_timer_can_be_changed_alone(acme: Api, name: str) -> None:
    made = create(acme)
    changed = acme.post("/timers/update", {**KEY, name: CHANGES[name]})
    due = {"dueAt": CHANGES[name]} if name == "executeAt" else {}
    assert changed.json() == {**made, name: CHANGES[name], **due}
    assert acme.post("/timers/get", KEY).json() == changed.json()


SET_TO = "2026-01-01T00:00:00.000Z"
RETRIED_AT = "2031-05-05T05:05:05.005Z"


@pytest.fixture
def retried(acme: Api) -> dict[str, Any]:
    """Return a timer that has been sent once and is due again, at another time than it was set to."""
    made = create(acme, executeAt=SET_TO)
    set_status(select_calls(acme), "Scheduled", attempt=1, due_at=RETRIED_AT)
    return made


def test_execute_at_stays_when_a_timer_is_late_or_due_again(acme: Api, retried: dict[str, Any]) -> None:
    assert retried["executeAt"] == SET_TO < retried["dueAt"]
    found = acme.post("/timers/get", KEY).json()
    (listed,) = acme.get("/timers").json()["items"]
    for shown in (found, listed):
        assert (shown["executeAt"], shown["dueAt"]) == (SET_TO, RETRIED_AT)


def test_other_changes_leave_both_times_alone(acme: Api, retried: dict[str, Any]) -> None:
    changed = acme.post("/timers/update", {**KEY, "payload": 2}).json()
    assert changed["serviceCallId"] != retried["serviceCallId"]
    assert (changed["executeAt"], changed["dueAt"]) == (SET_TO, RETRIED_AT)
    assert start(acme).request.body["executeAt"] == SET_TO


def test_changing_execute_at_changes_the_due_time(acme: Api, retried: dict[str, Any]) -> None:
    changed = acme.post("/timers/update", {**KEY, "executeAt": CHANGES["executeAt"]}).json()
    assert changed["executeAt"] == changed["dueAt"] == CHANGES["executeAt"]


def test_a_rescheduled_timer_keeps_its_execute_at(acme: Api) -> None:
    made = create(acme)
    moved = acme("PATCH", f"/service-calls/{made['serviceCallId']}", {"dueAt": RETRIED_AT})
    assert moved.status_code == 200, moved.content
    for shown in (
        acme.post("/timers/get", KEY).json(),
        acme.post("/timers/update", {**KEY, "payload": 1}).json(),
    ):
        assert (shown["executeAt"], shown["dueAt"]) == (made["executeAt"], RETRIED_AT)


def test_a_deleted_timer_is_not_found(acme: Api) -> None:
    create(acme)
    assert acme.post("/timers/delete", KEY).status_code == 204
    for action in ("get", "update", "delete"):
        assert acme.post(f"/timers/{action}", KEY).status_code == 404


def test_a_timer_is_deleted_while_its_callback_is_called(acme: Api) -> None:
    create(acme)
    start(acme)
    assert acme.post("/timers/delete", KEY).status_code == 204
    assert acme.get(f"/service-calls/{select_calls(acme).get().service_call_id}").json()["cancelRequested"]


def test_a_replay_of_a_timers_call_is_no_timer(acme: Api) -> None:
    made = create(acme)
    set_status(select_calls(acme), "Succeeded")
    replay = acme.post(f"/service-calls/{made['serviceCallId']}/replay").json()
    assert (replay["timerId"], replay["responseContract"]) == (None, "callback")
    submitted = acme.get(f"/service-calls/{replay['serviceCallId']}/events").json()["items"][0]
    assert submitted["data"]["timerId"] is None
    shown = acme.post("/timers/get", KEY).json()
    assert (shown["serviceCallId"], shown["status"]) == (made["serviceCallId"], "Succeeded")


def test_the_same_timer_id_can_exist_in_two_namespaces(acme: Api) -> None:
    declare_namespace(acme.tenant.tenant_id, "blue", 4)
    create(acme)
    create(acme, namespace="blue", payload="blue")
    assert acme.post("/timers/get", {**KEY, "namespace": "blue"}).json()["payload"] == "blue"
    assert acme.post("/timers/get", KEY).json()["payload"] == {"order": 1}


def test_an_unknown_namespace_is_invalid_and_an_unknown_timer_is_not_found(acme: Api) -> None:
    for action in ("create", "get", "update", "delete"):
        body = build_timer(namespace="nowhere") if action == "create" else {**KEY, "namespace": "nowhere"}
        assert list(get_errors(acme.post(f"/timers/{action}", body))) == ["/namespace"]
    for action in ("get", "update", "delete"):
        assert acme.post(f"/timers/{action}", KEY).status_code == 404


def test_all_errors_are_reported_at_once(acme: Api) -> None:
    wrong = {
        "id": "x" * 256,
        "callbackUrl": "http://u@h/",
        "retryPolicy": 1,
        "callbackTimeoutSeconds": 0,
        "more": 1,
    }
    assert sorted(get_errors(acme.post("/timers/create", wrong))) == [
        "/callbackTimeoutSeconds", "/callbackUrl", "/executeAt", "/id", "/more", "/retryPolicy",
    ]  # fmt: skip


def test_namespace_and_id_may_each_have_255_characters(acme: Api) -> None:
    namespace = "n" * 255
    assert acme.post("/namespaces", {"name": namespace}).status_code == 201
    assert acme.get(f"/namespaces/{namespace}").json()["name"] == namespace
    # The longest that a column holds, in bytes: MariaDB and MySQL limit the length of an index's keys.
    ids = ["\N{CLOCK FACE ONE OCLOCK}" * 254 + end for end in "ab"]
    made = [create(acme, namespace=namespace, id=timer_id, payload=timer_id) for timer_id in ids]
    again = create(acme, namespace=namespace, id=ids[0], payload=ids[0])
    assert again["serviceCallId"] == made[0]["serviceCallId"]
    for timer_id in ids:
        key = {"namespace": namespace, "timerId": timer_id}
        assert acme.post("/timers/get", key).json()["payload"] == timer_id
        assert acme.post("/timers/delete", key).status_code == 204
    assert len(acme.get(f"/service-calls?namespace={namespace}").json()["items"]) == 2
    too_long = acme.post("/namespaces", {"name": namespace + "n"})
    assert get_errors(too_long)["/name"].startswith("must be 1-255 lower-case letters")
    call = {"name": "call", "requestSpec": SPEC, "namespace": namespace}
    assert acme.post("/service-calls", call).status_code == 202


def test_a_url_of_2048_and_an_id_of_255_characters_are_allowed(acme: Api) -> None:
    url = "http://target.test/".ljust(2048, "a")
    assert create(acme, id="i" * 255, callbackUrl=url)["callbackUrl"] == url

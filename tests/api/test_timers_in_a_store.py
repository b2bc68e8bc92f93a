"""The timers of a namespace with a timer store, and the calls that they become, through the API."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from unittest.mock import patch

import pytest

from eventservice.db.now import pin_time
from orchestration.feeder.database_calls import DatabaseCalls
from orchestration.feeder.feeder import Feeder
from orchestration.models import ServiceCall
from tests.api.conftest import Api, get_errors
from tests.contracts.timer_stores.memory_fleet import FLEET, MemoryFleet
from tests.contracts.timer_stores.memory_store import MemoryTimerStore
from tests.factories import NOON
from tests.orchestration.support import ManualEngine, build_response
from timers.cell import get_cell_id
from timers.cell_stores import get_cell_store
from timers.stores.port import OutcomeUnknown, StoreUnavailable

pytestmark = pytest.mark.django_db

SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)
IN_AN_HOUR, IN_TWO_HOURS = "2026-03-01T13:00:00.000Z", "2026-03-01T14:00:00.000Z"
AT_HALF_PAST_ONE = b'{"ok": false, "nextExecuteAt": "2026-03-01T13:30:00Z"}'
KEY = {"namespace": "alerts", "timerId": "order-1"}
TIMER = {
    "namespace": "alerts",
    "id": "order-1",
    "executeAt": IN_AN_HOUR,
    "callbackUrl": "http://target.test/fire",
    "payload": {"order": 1},
    "retryPolicy": {"maxAttempts": 3, "initialInterval": "30s"},
    "callbackTimeoutSeconds": 5,
}


class Cell:
    """This deployment with one engine, whose passes and attempts happen when the test says."""

    def __init__(self, fleet: MemoryFleet, engine: ManualEngine) -> None:
        self.fleet, self.tables, self.engine = fleet, fleet.tables, engine
        store = fleet.build_store(FLEET, str(get_cell_id()))
        self._feeder = Feeder(store, DatabaseCalls(FLEET.name), clock=lambda: self.tables.clock.timestamp())
        # The second pass is the first one of a member that others can see.
        self.run_pass(NOON)
        self.run_pass(NOON)

    def run_pass(self, at: datetime) -> int:
        self.tables.clock = at
        with pin_time(at):
            return self._feeder.run_pass().fed

    def postpone_callback(self, at: datetime) -> None:
        """Feed the timer that is due, and let its callback ask for another attempt at half past one."""
        assert self.run_pass(at) == 1
        with pin_time(at):
            started = self.engine.start_one()
            self.engine.finish((started, build_response(started, body=AT_HALF_PAST_ONE)))
        self.run_pass(at)


@pytest.fixture
def cell(acme: Api, fleet: MemoryFleet, manual_engine: ManualEngine) -> Cell:
    declare(acme, "alerts")
    return Cell(fleet, manual_engine)


def declare(api: Api, namespace: str) -> None:
    declared = api.post("/namespaces", {"name": namespace, "numShards": 4, "store": FLEET.name})
    assert declared.status_code == 201, declared.content


def create(api: Api, **changes: Any) -> dict[str, Any]:
    response = api.post("/timers/create", {**TIMER, **changes})
    assert response.status_code == 200, response.content
    made: dict[str, Any] = response.json()
    return made


def count_calls(api: Api) -> int:
    return ServiceCall.objects.for_tenant(api.tenant.tenant_id).count()


# --- timers -------------------------------------------------------------------------------------------------------


def test_a_timer_is_set_in_the_store_and_can_be_read(acme: Api, cell: Cell) -> None:
    made = create(acme)
    assert acme.post("/timers/get", KEY).json() == made
    shown = {name: made[name] for name in ("timerId", "executeAt", "dueAt", "status", "payload", "attempts")}
    assert shown == {
        "timerId": "order-1",
        "executeAt": IN_AN_HOUR,
        "dueAt": IN_AN_HOUR,
        "status": "Scheduled",
        "payload": {"order": 1},
        "attempts": 0,
    }
    assert (made["callbackTimeoutSeconds"], made["retryPolicy"]["maxAttempts"]) == (5.0, 3)
    assert len(cell.tables.timers) == 1
    assert count_calls(acme) == 0
    assert acme.get(f"/service-calls/{made['serviceCallId']}").status_code == 404


def test_a_pending_timer_is_overwritten(acme: Api, cell: Cell) -> None:
    first = create(acme)
    second = create(acme, payload=[2], executeAt=IN_TWO_HOURS)
    assert second["serviceCallId"] != first["serviceCallId"]
    assert (second["payload"], second["dueAt"]) == ([2], IN_TWO_HOURS)
    assert len(cell.tables.timers) == 1


def test_each_member_can_be_changed_alone(acme: Api, cell: Cell) -> None:
    made = create(acme)
    for name, value in {
        "payload": None,
        "callbackUrl": "http://other.test/x",
        "callbackTimeoutSeconds": 9.0,
    }.items():
        changed = acme.post("/timers/update", {**KEY, name: value}).json()
        made = {**made, name: value, "serviceCallId": changed["serviceCallId"]}
        assert changed == made
    changed = acme.post("/timers/update", {**KEY, "executeAt": IN_TWO_HOURS}).json()
    assert changed["executeAt"] == changed["dueAt"] == IN_TWO_HOURS


def test_a_deleted_timer_is_not_found(acme: Api, cell: Cell) -> None:
    create(acme)
    assert acme.post("/timers/delete", KEY).status_code == 204
    assert cell.tables.timers == {}
    for action in ("get", "update", "delete"):
        assert acme.post(f"/timers/{action}", KEY).status_code == 404


def test_a_timer_that_is_due_becomes_a_call_and_can_be_read_after_its_end(acme: Api, cell: Cell) -> None:
    made = create(acme)
    assert cell.run_pass(NOON + HOUR - 4 * SECOND) == 1
    call = acme.get(f"/service-calls/{made['serviceCallId']}").json()
    assert (call["timerId"], call["status"], call["dueAt"]) == ("order-1", "Scheduled", IN_AN_HOUR)
    with pin_time(NOON + HOUR):
        started = cell.engine.start_one()
        assert acme.post("/timers/get", KEY).json()["status"] == "Running"
        cell.engine.finish((started, build_response(started)))
    for _ in range(2):  # before and after the timer is removed from the store
        found = acme.post("/timers/get", KEY).json()
        assert (found["status"], found["attempts"]) == ("Succeeded", 1)
        cell.run_pass(NOON + HOUR)
    assert cell.tables.timers == {}


def test_a_timer_that_fires_cannot_be_changed(acme: Api, cell: Cell) -> None:
    made = create(acme)
    cell.run_pass(NOON + HOUR - 4 * SECOND)
    call = f"/service-calls/{made['serviceCallId']}"
    with pin_time(NOON + HOUR - 3 * SECOND):
        for method, path, body in (
            ("POST", "/timers/create", TIMER),
            ("POST", "/timers/update", {**KEY, "payload": 1}),
            ("POST", "/timers/delete", KEY),
            ("POST", f"{call}/cancel", None),
            ("POST", f"{call}/run-now", None),
            ("PATCH", call, {"dueAt": IN_TWO_HOURS}),
            ("DELETE", call, None),
        ):
            refused = acme(method, path, body)
            assert (refused.status_code, refused.json()["code"]) == (409, "timer_firing"), path
            assert 1 <= int(refused["Retry-After"]) <= 5
    assert acme.post("/timers/get", KEY).json()["serviceCallId"] == made["serviceCallId"]


def test_a_timer_between_two_attempts_can_be_changed(acme: Api, cell: Cell) -> None:
    made = create(acme)
    cell.postpone_callback(NOON + HOUR)
    waiting = acme.post("/timers/get", KEY).json()
    assert (waiting["status"], waiting["attempts"]) == ("Scheduled", 1)
    assert (waiting["outcome"]["status"], waiting["dueAt"]) == (200, "2026-03-01T13:30:00.000Z")
    with pin_time(NOON + HOUR + SECOND):
        changed = acme.post("/timers/update", {**KEY, "payload": 2}).json()
    assert (changed["attempts"], changed["dueAt"], changed["payload"]) == (0, waiting["dueAt"], 2)
    assert acme.get(f"/service-calls/{made['serviceCallId']}").json()["status"] == "Canceled"


def test_a_cell_that_sends_in_another_way_than_declared_leaves_near_timers_to_the_others(
    acme: Api, cell: Cell, settings: Any
) -> None:
    settings.EGRESS_ALLOW_PRIVATE = not settings.EGRESS_ALLOW_PRIVATE
    assert create(acme, executeAt="2026-03-01T12:00:01Z")["status"] == "Scheduled"
    (timer,) = cell.tables.timers.values()
    assert timer.taken_by is None
    assert count_calls(acme) == 0


# --- lists --------------------------------------------------------------------------------------------------------


def test_pending_timers_of_the_namespace_are_listed_page_by_page(acme: Api, cell: Cell) -> None:
    ids = {create(acme, id=f"order-{number}")["timerId"] for number in range(5)}
    pages = [acme.get("/timers?namespace=alerts&limit=2").json()]
    while cursor := pages[-1]["nextCursor"]:
        pages.append(acme.get(f"/timers?namespace=alerts&limit=2&cursor={cursor}").json())
    assert sorted(item["timerId"] for page in pages for item in page["items"]) == sorted(ids)
    assert len(pages) >= 3
    assert acme.get("/timers").json()["items"] == []


def test_the_list_shows_what_has_become_of_a_timer_that_was_attempted(acme: Api, cell: Cell) -> None:
    create(acme)
    cell.postpone_callback(NOON + HOUR)
    (listed,) = acme.get("/timers?namespace=alerts&status=Scheduled").json()["items"]
    found = acme.post("/timers/get", KEY).json()
    assert listed == {name: found[name] for name in listed}
    assert acme.get("/timers?namespace=alerts&status=Failed").json()["items"] == []


@pytest.mark.parametrize(
    ("query", "pointer"),
    [
        ("from=2026-03-01T12:00:00Z", "/query/from"),
        ("to=2026-03-01T12:00:00Z", "/query/to"),
        ("sort=dueAt", "/query/sort"),
        ("status=Scheduled&status=Failed", "/query/status"),
    ],
)
def test_what_a_store_cannot_search_for_is_refused(acme: Api, cell: Cell, query: str, pointer: str) -> None:
    assert list(get_errors(acme.get(f"/timers?namespace=alerts&{query}"))) == [pointer]


def test_a_cursor_is_valid_for_its_namespace_alone(acme: Api, cell: Cell) -> None:
    declare(acme, "more")
    for number in range(5):
        create(acme, id=f"order-{number}")
    cursor = acme.get("/timers?namespace=alerts&limit=1").json()["nextCursor"]
    assert list(get_errors(acme.get(f"/timers?namespace=more&limit=1&cursor={cursor}"))) == ["/query/cursor"]


# --- the calls of timers ------------------------------------------------------------------------------------------


@pytest.fixture
def waiting(acme: Api, cell: Cell) -> str:
    """Return the path of a call that waits for its next attempt."""
    made = create(acme)
    cell.postpone_callback(NOON + HOUR)
    return f"/service-calls/{made['serviceCallId']}"


def test_canceling_a_waiting_call_deletes_its_timer(acme: Api, cell: Cell, waiting: str) -> None:
    canceled = acme.post(f"{waiting}/cancel")
    assert (canceled.status_code, canceled.json()["status"]) == (202, "Canceled")
    assert cell.tables.timers == {}
    assert acme.post("/timers/delete", KEY).status_code == 404


def test_deleting_a_waiting_call_deletes_its_timer(acme: Api, cell: Cell, waiting: str) -> None:
    deleted = acme("DELETE", waiting)
    assert deleted.status_code == 204, deleted.content
    assert cell.tables.timers == {}
    assert acme.get(waiting).status_code == 404


def test_a_waiting_call_is_run_now_by_the_next_pass(acme: Api, cell: Cell, waiting: str) -> None:
    now = NOON + HOUR + SECOND
    with pin_time(now):
        started = acme.post(f"{waiting}/run-now")
    assert (started.status_code, started.json()["dueAt"]) == (202, "2026-03-01T13:00:01.000Z")
    assert cell.run_pass(now) == 1
    with pin_time(now):
        attempt = cell.engine.start_one()
        cell.engine.finish((attempt, build_response(attempt)))
    assert acme.get(waiting).json()["status"] == "Succeeded"


def test_a_waiting_call_can_be_rescheduled_and_keeps_its_id(acme: Api, cell: Cell, waiting: str) -> None:
    with pin_time(NOON + HOUR + SECOND):
        moved = acme("PATCH", waiting, {"dueAt": IN_TWO_HOURS, "name": "later"}).json()
    assert (moved["dueAt"], moved["name"]) == (IN_TWO_HOURS, "later")
    timer = acme.post("/timers/get", KEY).json()
    assert (timer["dueAt"], timer["executeAt"]) == (IN_TWO_HOURS, IN_AN_HOUR)
    assert waiting.endswith(timer["serviceCallId"])
    assert cell.run_pass(NOON + HOUR + 60 * SECOND) == 0
    assert cell.run_pass(NOON + 2 * HOUR) == 1


def test_a_call_whose_timer_was_deleted_in_another_cell_is_canceled(
    acme: Api, cell: Cell, waiting: str
) -> None:
    cell.tables.timers.clear()
    with pin_time(NOON + HOUR + SECOND):
        refused = acme("PATCH", waiting, {"dueAt": IN_TWO_HOURS})
    assert (refused.status_code, refused.json()["code"]) == (409, "wrong_state")
    assert acme.get(waiting).json()["status"] == "Canceled"


def test_ordinary_calls_of_the_namespace_are_in_this_database(acme: Api, cell: Cell) -> None:
    call = acme.submit(namespace="alerts")
    path = f"/service-calls/{call['serviceCallId']}"
    assert acme.post(f"{path}/run-now").status_code == 202
    assert acme.post(f"{path}/cancel").json()["status"] == "Canceled"


# --- trouble ------------------------------------------------------------------------------------------------------


def test_an_unavailable_store_is_reported_and_nothing_is_changed(acme: Api, cell: Cell) -> None:
    made = create(acme)
    cell.fleet.is_available = False
    for action, body in (("create", TIMER), ("get", KEY), ("update", KEY), ("delete", KEY)):
        refused = acme.post(f"/timers/{action}", body)
        assert (refused.status_code, refused.json()["code"]) == (503, "store_unavailable")
        assert refused["Retry-After"] == "5"
        assert "no server can be reached" not in refused.json()["detail"]
    cell.fleet.is_available = True
    assert acme.post("/timers/get", KEY).json() == made
    assert acme.submit()["status"] == "Scheduled"


def test_a_write_without_an_answer_has_an_unknown_outcome(acme: Api, cell: Cell) -> None:
    with patch.object(MemoryTimerStore, "put", side_effect=OutcomeUnknown("no answer")):
        refused = acme.post("/timers/create", TIMER)
    assert (refused.status_code, refused.json()["code"]) == (503, "outcome_unknown")
    assert "Retry-After" not in refused.headers


def test_a_read_that_fails_after_the_write_does_not_deny_the_write(acme: Api, cell: Cell) -> None:
    with patch.object(MemoryTimerStore, "get", side_effect=[None, StoreUnavailable("gone")]):
        refused = acme.post("/timers/create", TIMER)
    assert (refused.status_code, refused.json()["code"]) == (503, "outcome_unknown")
    assert len(cell.tables.timers) == 1


def test_a_store_that_is_no_longer_configured_is_unavailable(acme: Api, cell: Cell, settings: Any) -> None:
    get_cell_store.cache_clear()
    settings.TIMER_STORES = []
    refused = acme.post("/timers/create", TIMER)
    assert (refused.status_code, refused.json()["code"]) == (503, "store_unavailable")


def test_a_timer_that_the_store_can_never_hold_is_invalid(acme: Api, cell: Cell) -> None:
    with patch("tests.contracts.timer_stores.memory_store.MAX_BYTES", 100):
        refused = acme.post("/timers/create", {**TIMER, "payload": "x" * 200})
    assert get_errors(refused) == {"/payload": "a timer has at most 100 bytes"}


def test_an_inactive_tenant_sets_no_timers(acme: Api, cell: Cell, operator: Api) -> None:
    operator("PATCH", f"/api/v1/tenants/{acme.tenant.tenant_id}", {"active": False})
    refused = operator.post(f"/api/v1/tenants/{acme.tenant.tenant_id}/timers/create", TIMER)
    assert (refused.status_code, refused.json()["code"]) == (409, "tenant_inactive")


def test_another_tenant_sees_nothing_of_the_store(acme: Api, intruder: Api, cell: Cell) -> None:
    create(acme)
    declare(intruder, "alerts")
    assert intruder.post("/timers/get", KEY).status_code == 404
    assert intruder.get("/timers?namespace=alerts").json()["items"] == []
    assert intruder.post("/timers/delete", KEY).status_code == 404
    assert len(cell.tables.timers) == 1

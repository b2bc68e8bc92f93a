"""Submitting one call."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import uuid6
from pydantic import TypeAdapter, ValidationError

from eventservice.api.schema.types import DueTime
from eventservice.db.now import pin_time
from orchestration import lifecycle
from orchestration.models import ServiceCall
from orchestration.outcome_rules import MAX_DELAY
from outbox.models import OutboxEvent
from tests.api.conftest import SPEC, Api, build_submission, create_api, get_errors
from tests.factories import NOON
from tests.orchestration.support import build_command

pytestmark = pytest.mark.django_db

FULL_SPEC: dict[str, Any] = {
    "method": "POST",
    "url": "http://target.test/hook",
    "headers": {"X-One": "1", "X-Two": "2"},
    "body": {"a": 1, "b": [1, 2]},
}


def test_a_submission_is_accepted_and_can_be_read(acme: Api) -> None:
    response = acme.post("/service-calls", build_submission(tags=["b", "a"], retryPolicy={"maxAttempts": 3}))
    assert response.status_code == 202
    assert response["Location"] == f"{acme.root}/service-calls/{response.json()['serviceCallId']}"
    found = acme.get(response["Location"])
    assert found.json() == response.json()
    assert found.json()["tags"] == ["a", "b"]
    assert found.json()["status"] == "Scheduled"


def test_every_member_of_a_submission_is_stored(acme: Api) -> None:
    given = {
        "name": "Grüße 🎉",
        "requestSpec": {
            "method": "PUT",
            "url": "https://target.test:8443/a?b=c",
            "headers": {"X-A": "ü"},
            "body": [1, None],
        },
        "dueAt": "2030-01-01T02:00:00.123456+02:00",
        "serviceCallId": "01900000-0000-7000-8000-000000000001",
        "tags": ["favorite", "blue"],
        "namespace": "default",
        "idempotencyKey": "key-1",
        "retryPolicy": {
            "maxAttempts": 5,
            "maxAttemptsDuration": "24h",
            "initialInterval": "30s",
            "backoffMultiplier": 1.5,
            "maxInterval": "PT1H",
        },
        "timeoutSeconds": 2.5,
        "delivery": "at_most_once",
    }
    call = acme.post("/service-calls", given).json()
    assert call["requestSpec"] == given["requestSpec"]
    assert call["dueAt"] == "2030-01-01T00:00:00.123Z"
    assert call["favorite"] is True
    assert call["retryPolicy"] == {**given["retryPolicy"], "maxInterval": "1h"}  # type: ignore[dict-item]
    for name in ("name", "serviceCallId", "idempotencyKey", "timeoutSeconds", "delivery"):
        assert call[name] == given[name]


@pytest.mark.parametrize(
    ("when", "seconds"),
    [
        ({"delay": "90s"}, 90),
        ({"delay": "2h"}, 7200),
        ({"delay": "1d2h3m4.5s"}, 93_784.5),
        ({"delay": "PT90S"}, 90),
        ({"delay": "P1W"}, 604_800),
        ({"delay": "0s"}, 0),
        ({"delay": None}, 0),
        ({"dueAt": "2026-03-01T13:00:00+00:30"}, 1800),
        ({"dueAt": "2020-01-01T00:00:00Z"}, 0),
        ({"delay": None, "dueAt": None}, 0),
        ({"delay": "3653d"}, 3653 * 86_400),
        ({"dueAt": "2036-03-01T12:00:00Z"}, 3653 * 86_400),
    ],
)
def test_a_call_is_due_as_requested(acme: Api, when: dict[str, Any], seconds: float) -> None:
    document = {**build_submission(), **when}
    if "delay" not in when:
        del document["delay"]
    with pin_time(NOON):
        call = acme.post("/service-calls", document).json()
    assert datetime.fromisoformat(call["dueAt"]) == NOON + timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("when", "pointer"),
    [
        ({"delay": "3653d1s"}, "/delay"),
        ({"delay": "-1s"}, "/delay"),
        ({"delay": "1"}, "/delay"),
        ({"delay": ""}, "/delay"),
        ({"delay": "P1Y"}, "/delay"),
        ({"delay": "٣s"}, "/delay"),
        ({"dueAt": "2026-03-01"}, "/dueAt"),
        ({"dueAt": "2026-03-01T12:00:00"}, "/dueAt"),
        ({"dueAt": "2026-02-30T12:00:00Z"}, "/dueAt"),
        ({"dueAt": "2026-03-01T12:00:60Z"}, "/dueAt"),
        ({"dueAt": "0001-01-01T00:00:00+14:00"}, "/dueAt"),
        ({"dueAt": "9999-12-31T23:59:59-14:00"}, "/dueAt"),
        ({"dueAt": "2099-01-01T00:00:00Z"}, "/dueAt"),
        ({"dueAt": "2030-01-01T00:00:00Z", "delay": "1s"}, "/delay"),
    ],
)
def test_an_invalid_time_is_refused(acme: Api, when: dict[str, str], pointer: str) -> None:
    document = build_submission()
    del document["delay"]
    assert list(get_errors(acme.post("/service-calls", document | when))) == [pointer]


def test_the_maximum_delay_is_named_in_days(acme: Api) -> None:
    refused = acme.post("/service-calls", build_submission(delay="9999d"))
    assert get_errors(refused) == {"/delay": "must be from 0s to 3653d"}


@pytest.mark.parametrize("delay", ["soon", "1w", "90", "P1M", "12h1d"])
def test_the_forms_of_a_duration_are_named(acme: Api, delay: str) -> None:
    (rule,) = get_errors(acme.post("/service-calls", build_submission(delay=delay))).values()
    assert rule == (
        'must be a duration: days, hours, minutes and seconds, such as "1d12h" or "90s", or in the form of ISO 8601, such as '
        '"PT90S" or, only there with weeks, "P2W"'
    )


@pytest.mark.parametrize("name", [" ", "   ", "\u3000", "\u200d"])
def test_a_name_that_nobody_sees_is_refused(acme: Api, name: str) -> None:
    assert list(get_errors(acme.post("/service-calls", build_submission(name=name)))) == ["/name"]
    path = f"/service-calls/{acme.submit()['serviceCallId']}"
    assert list(get_errors(acme("PATCH", path, {"name": name}))) == ["/name"]


def test_a_call_whose_name_nobody_sees_still_works(acme: Api) -> None:
    """It may have been stored before such names were refused."""
    made = acme.submit()
    path = f"/service-calls/{made['serviceCallId']}"
    ServiceCall.objects.for_tenant(acme.tenant.tenant_id).update(name=" ")
    assert acme.get(path).json()["name"] == " "
    assert [call["name"] for call in acme.get("/service-calls?name=%20").json()["items"]] == [" "]
    assert acme("PATCH", path, {"tags": ["a"]}).json()["name"] == " "
    assert acme.post(f"{path}/cancel").status_code == 202
    assert acme.post(f"{path}/replay").json()["name"] == " "


@pytest.mark.parametrize("value", ["", " ", "\t"])
def test_an_empty_idempotency_key_for_the_receiver_is_refused(acme: Api, value: str) -> None:
    spec = {**SPEC, "headers": {"idempotency-key": value, "X-Empty": ""}}
    assert get_errors(acme.post("/service-calls", build_submission(requestSpec=spec))) == {
        "/requestSpec/headers/idempotency-key": "is refused: it is empty. Omit it, and the id of the call is sent"
    }


def test_all_errors_are_reported_at_once(acme: Api) -> None:
    wrong = {
        "name": " \n",
        "requestSpec": {
            "method": "FETCH",
            "url": "ftp://x",
            "headers": {"Host": "x", "a b": "c", "X-A": "1\r\n2", "X/Y~": 3},
            "extra": 1,
        },
        "delay": "soon",
        "tags": ["ok", 3, "", "x" * 65],
        "namespace": "nowhere",
        "timeoutSeconds": True,
        "retryPolicy": {"maxAttempts": 0, "maxInterval": 5, "color": "red"},
        "delivery": "maybe",
        "serviceCallId": "7",
        "color": "red",
    }
    assert sorted(get_errors(acme.post("/service-calls", wrong, headers={"Idempotency-Key": "a b"}))) == [
        "/color", "/delay", "/delivery", "/headers/Idempotency-Key", "/name", "/namespace",
        "/requestSpec/extra", "/requestSpec/headers/Host", "/requestSpec/headers/X-A",
        "/requestSpec/headers/X~1Y~0", "/requestSpec/headers/a b", "/requestSpec/method", "/requestSpec/url",
        "/retryPolicy/color", "/retryPolicy/maxAttempts", "/retryPolicy/maxInterval",
        "/serviceCallId", "/tags/1", "/tags/2", "/tags/3", "/timeoutSeconds",
    ]  # fmt: skip
    assert not ServiceCall.objects.for_tenant(acme.tenant.tenant_id).exists()


def test_missing_members_are_named(acme: Api) -> None:
    assert get_errors(acme.post("/service-calls", {})) == {
        "/name": "is required",
        "/requestSpec": "is required",
    }
    assert set(get_errors(acme.post("/service-calls", build_submission(requestSpec={})))) == {
        "/requestSpec/method",
        "/requestSpec/url",
    }


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"headers": {f"X-{n}": "v" for n in range(65)}}, "/requestSpec/headers"),
        ({"headers": {"X-A": "v" * 20_000}}, "/requestSpec/headers/X-A"),
        ({"headers": {"X-A": "1", "x-a": "2"}}, "/requestSpec/headers/x-a"),
        ({"url": "http://target.test/" + "a" * 2048}, "/requestSpec/url"),
        ({"body": json.loads("[" * 40 + "]" * 40)}, "/requestSpec/body"),
        ({"body": "x" * 1_048_577}, "/requestSpec/body"),
    ],
)
def test_a_limit_is_a_clear_error(acme: Api, changes: dict[str, Any], pointer: str) -> None:
    assert list(
        get_errors(acme.post("/service-calls", build_submission(requestSpec={**SPEC, **changes})))
    ) == [pointer]


def test_the_limits_themselves_are_allowed(acme: Api) -> None:
    spec = {
        "method": "POST",
        "url": "http://target.test/" + "a" * 2000,
        "headers": {f"X-{n}": "v" for n in range(64)},
        "body": "x" * 1_048_576,
    }
    acme.submit(requestSpec=spec, tags=[f"{n:064d}" for n in range(20)], name="n" * 200)


# --- idempotency ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_header", [True, False])
def test_a_repeat_with_the_same_key_gives_the_same_call(acme: Api, by_header: bool) -> None:
    headers = {"Idempotency-Key": "once"} if by_header else {}
    document = build_submission() if by_header else build_submission(idempotencyKey="once")
    first = acme.post("/service-calls", document, headers=headers)
    again = acme.post("/service-calls", document, headers=headers)
    assert (again.status_code, again["Idempotent-Replayed"]) == (202, "true")
    assert "Idempotent-Replayed" not in first
    assert again.json() == first.json()
    assert again["Location"] == first["Location"]
    assert ServiceCall.objects.for_tenant(acme.tenant.tenant_id).count() == 1


def test_the_same_key_with_another_payload_is_a_conflict(acme: Api) -> None:
    acme.submit(idempotencyKey="once")
    response = acme.post("/service-calls", build_submission(idempotencyKey="once", name="other"))
    assert (response.status_code, response.json()["code"]) == (409, "idempotency_conflict")
    assert response.json()["errors"][0]["pointer"] == "/idempotencyKey"


def test_a_conflict_names_the_call_that_exists(acme: Api, operator: Api) -> None:
    there = acme.submit(idempotencyKey="once")["serviceCallId"]
    for api in (acme, operator):
        refused = api.post("/service-calls", build_submission(idempotencyKey="once", name="other")).json()
        assert refused["code"] == "idempotency_conflict"
        assert refused["existingServiceCallId"] == there
        assert "repeat exactly what was sent first" in refused["detail"]


def test_a_conflict_names_no_call_to_a_key_that_may_not_read(acme: Api) -> None:
    there = acme.submit(idempotencyKey="once")["serviceCallId"]
    writer = create_api(acme.tenant, ["write"])
    refused = writer.post("/service-calls", build_submission(idempotencyKey="once", name="other"))
    assert (refused.status_code, refused.json()["code"]) == (409, "idempotency_conflict")
    assert "existingServiceCallId" not in refused.json()
    assert there not in refused.content.decode()


def test_the_conflict_of_a_replay_names_the_call_that_exists(acme: Api) -> None:
    there = acme.submit(idempotencyKey="once")["serviceCallId"]
    acme.post(f"/service-calls/{there}/cancel")
    refused = acme.post(f"/service-calls/{there}/replay", headers={"Idempotency-Key": "once"}).json()
    assert (refused["code"], refused["existingServiceCallId"]) == ("idempotency_conflict", there)


@pytest.mark.parametrize(
    "same",
    [
        {"delay": "60m"},
        {"delay": "PT1H"},
        {"tags": ["b", "a"]},
        {"tags": ["a", "b", "a"]},
        {"requestSpec": dict(reversed(FULL_SPEC.items()))},
        {"requestSpec": {**FULL_SPEC, "headers": dict(reversed(FULL_SPEC["headers"].items()))}},
        {"requestSpec": {**FULL_SPEC, "body": dict(reversed(FULL_SPEC["body"].items()))}},
        {"namespace": "default", "timeoutSeconds": 30, "delivery": "at_least_once"},
        {"retryPolicy": {"maxAttempts": 5.0, "initialInterval": "PT30S", "backoffMultiplier": 2}},
        {"dueAt": None, "serviceCallId": None},
    ],
    ids=str,
)
def test_a_repeat_is_recognized_by_its_meaning(acme: Api, same: dict[str, Any]) -> None:
    first = {"requestSpec": FULL_SPEC, "tags": ["a", "b"], "retryPolicy": {"maxAttempts": 5}}
    there = acme.submit(idempotencyKey="once", **first)
    assert acme.submit(idempotencyKey="once", **{**first, **same}) == there


def test_a_due_time_is_the_same_in_every_notation(acme: Api) -> None:
    document = {"name": "greet", "requestSpec": SPEC, "idempotencyKey": "once"}
    there, again = (
        acme.post("/service-calls", {**document, "dueAt": due}).json()
        for due in ("2030-01-01T00:00:00Z", "2030-01-01T01:00:00.000+01:00")
    )
    assert again == there


@pytest.mark.parametrize(
    "other",
    [
        {"delay": "3601s"},
        {"delay": None, "dueAt": "2030-01-01T00:00:00Z"},
        {"delay": None},
        {"requestSpec": {**FULL_SPEC, "headers": {**FULL_SPEC["headers"], "X-One": "2"}}},
        {"requestSpec": {**FULL_SPEC, "headers": {"x-one": "1", "X-Two": "2"}}},
        {"requestSpec": {**FULL_SPEC, "body": {"a": 1, "b": [2, 1]}}},
        {"requestSpec": {**FULL_SPEC, "url": "http://TARGET.test/hook"}},
        {"tags": ["a"]},
        {"serviceCallId": "01900000-0000-7000-8000-00000000cafe"},
    ],
    ids=str,
)
def test_a_request_of_another_meaning_is_a_conflict(acme: Api, other: dict[str, Any]) -> None:
    acme.submit(idempotencyKey="once", requestSpec=FULL_SPEC)
    document = build_submission(idempotencyKey="once", requestSpec=FULL_SPEC)
    refused = acme.post("/service-calls", {**document, **other})
    assert (refused.status_code, refused.json()["code"]) == (409, "idempotency_conflict")


def test_two_tenants_may_use_the_same_key_and_the_same_id(acme: Api, intruder: Api) -> None:
    same = {"idempotencyKey": "once", "serviceCallId": "01900000-0000-7000-8000-00000000cafe"}
    assert acme.submit(**same)["serviceCallId"] == intruder.submit(**same)["serviceCallId"]


def test_a_header_and_a_member_that_differ_are_refused(acme: Api) -> None:
    response = acme.post(
        "/service-calls", build_submission(idempotencyKey="a"), headers={"Idempotency-Key": "b"}
    )
    assert list(get_errors(response)) == ["/idempotencyKey"]


@pytest.mark.parametrize(
    "given",
    [
        "9a1bef62-6d2c-4da0-b815-eb380b622b76",  # version 4, as uuidgen makes it
        "c232ab00-9414-11ec-b3c8-9f6bdeced846",  # version 1
        "1ec9414c-232a-6b00-b3c8-9f6bdeced846",  # version 6
        "01900000-0000-7000-c000-000000000001",  # of another variant
        "00000000-0000-0000-0000-000000000000",
    ],
)
def test_the_clients_own_id_must_be_of_version_7(acme: Api, given: str) -> None:
    response = acme.post("/service-calls", build_submission(serviceCallId=given))
    assert get_errors(response) == {"/serviceCallId": "must be a UUID of version 7"}
    assert response.json()["code"] == "invalid"
    assert not ServiceCall.objects.for_tenant(acme.tenant.tenant_id).exists()


def test_the_clients_own_id_may_be_made_by_the_package_uuid6(acme: Api) -> None:
    own = str(uuid6.uuid7())
    assert acme.submit(serviceCallId=own.upper())["serviceCallId"] == own


def test_a_call_with_an_older_id_of_another_version_can_still_be_used(acme: Api) -> None:
    old = uuid.UUID("9a1bef62-6d2c-4da0-b815-eb380b622b76")
    lifecycle.submit([build_command(acme.tenant, service_call_id=old, delay=timedelta(hours=1))])
    path = f"/service-calls/{old}"
    assert acme.get(path).json()["serviceCallId"] == str(old)
    assert [one["serviceCallId"] for one in acme.get("/service-calls").json()["items"]] == [str(old)]
    assert acme("PATCH", path, {"name": "renamed"}).json()["name"] == "renamed"
    assert acme.post(f"{path}/cancel").json()["status"] == "Canceled"
    assert acme.post(f"{path}/replay").json()["replayOf"] == str(old)
    assert len(acme.get(f"{path}/events").json()["items"]) == 3
    assert acme("DELETE", path).status_code == 204


def test_the_id_of_another_call_is_a_conflict(acme: Api) -> None:
    taken = acme.submit()["serviceCallId"]
    response = acme.post("/service-calls", build_submission(serviceCallId=taken))
    assert (response.status_code, response.json()["code"]) == (409, "already_exists")


def test_an_id_of_a_deleted_call_is_free_when_its_events_are_gone(acme: Api) -> None:
    given = build_submission(serviceCallId="01900000-0000-7000-8000-000000000001")
    acme.post("/service-calls", given)
    assert acme("DELETE", f"/service-calls/{given['serviceCallId']}").status_code == 204
    refused = acme.post("/service-calls", given)
    assert (refused.status_code, refused.json()["code"]) == (409, "already_used")
    assert "its events are still kept" in refused.json()["detail"]
    assert refused.json()["errors"] == [{"pointer": "/serviceCallId", "detail": "must be new"}]
    OutboxEvent.objects.for_tenant(acme.tenant.tenant_id).delete()
    assert acme.post("/service-calls", given).status_code == 202


# --- correlation ----------------------------------------------------------------------------------------------


def test_the_callers_correlation_id_is_kept_and_is_in_every_event(acme: Api) -> None:
    correlation = "01900000-0000-7000-8000-00000000abcd"
    response = acme.post("/service-calls", build_submission(), headers={"X-Correlation-Id": correlation})
    assert response["X-Correlation-Id"] == correlation
    call = response.json()
    assert call["correlationId"] == correlation
    events = acme.get(f"/service-calls/{call['serviceCallId']}/events").json()["items"]
    assert [event["type"] for event in events] == ["ServiceCallSubmitted", "ServiceCallScheduled"]
    assert {event["correlationId"] for event in events} == {correlation}
    assert events[1]["causationId"] == events[0]["id"]


@pytest.mark.parametrize("given", ["", "x", "9a1bef62-6d2c-4da0-b815-eb380b622b76", "\xff"])
def test_a_correlation_id_is_generated_if_none_is_valid(acme: Api, given: str) -> None:
    made = uuid.UUID(acme.get("/service-calls", headers={"X-Correlation-Id": given})["X-Correlation-Id"])
    assert made.version == 7


def test_times_are_in_utc_with_milliseconds(acme: Api) -> None:
    with pin_time(datetime(2026, 3, 1, 12, 0, 0, 4999, tzinfo=UTC)):
        assert acme.submit()["submittedAt"] == "2026-03-01T12:00:00.004Z"


def test_a_due_time_is_compared_with_the_time_of_the_request() -> None:
    """Not with that of an earlier request, as long as the difference decides."""
    due_time = TypeAdapter(DueTime)
    with pin_time(NOON):
        due_time.validate_python(NOON.isoformat())
        with pytest.raises(ValidationError):
            due_time.validate_python((NOON + MAX_DELAY + timedelta(seconds=1)).isoformat())
    with pin_time(NOON + timedelta(seconds=1)):
        due_time.validate_python((NOON + MAX_DELAY + timedelta(seconds=1)).isoformat())
        with pytest.raises(ValidationError):
            due_time.validate_python((NOON + MAX_DELAY + timedelta(seconds=2)).isoformat())

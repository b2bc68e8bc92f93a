"""A tenant may send so many bytes per minute, and store so many."""

from __future__ import annotations

import random
import string
from typing import Any

import pytest

from eventservice.api.throttling import clear_buckets
from eventservice.tenants.directory import update_tenant
from eventservice.tenants.models import Tenant
from orchestration import admission
from orchestration.admission import CALL_BYTES
from orchestration.models import ServiceCall
from orchestration.statistics.storage import compute_stored_bytes, measure_storage
from tests.api.conftest import SPEC, Api, build_submission, create_api
from tests.factories import HttpExecutionFactory

pytestmark = pytest.mark.django_db

SIZE = 20_000
# PostgreSQL compresses what it stores.
BODY = "".join(random.Random(1).choices(string.ascii_letters, k=SIZE))


def build_large(**changes: Any) -> dict[str, Any]:
    return build_submission(requestSpec={**SPEC, "body": BODY}, **changes)


def test_bytes_beyond_the_limit_of_a_minute_wait(acme: Api, intruder: Api, operator: Api) -> None:
    operator("PATCH", "", {"bytesPerMinute": 2 * SIZE + 2000})
    statuses = [acme.post("/service-calls", build_large()).status_code for _ in range(3)]
    assert statuses == [202, 202, 429]
    refused = acme.post("/service-calls/batch", {"items": [build_large()]})
    assert (refused.status_code, refused.json()["code"]) == (429, "too_many_bytes")
    assert 1 <= int(refused["Retry-After"]) <= 60
    # A small request still fits, reading costs nothing, and administration and other tenants have their own.
    assert acme.get("/service-calls").status_code == 200
    assert acme.post("/namespaces", {"name": "blue"}).status_code == 201
    assert Api(intruder.tenant, intruder.key).post("/service-calls", build_large()).status_code == 202


def test_a_body_that_can_never_fit_is_too_large(acme: Api, operator: Api) -> None:
    operator("PATCH", "", {"bytesPerMinute": 1024})
    response = acme.post("/service-calls", build_large())
    assert (response.status_code, response.json()["code"]) == (413, "too_large")
    assert "1024 bytes per minute" in response.json()["detail"]
    assert acme.post("/service-calls", build_submission()).status_code == 202


def test_a_replay_counts_like_the_request_that_it_stores_again(acme: Api, operator: Api) -> None:
    call = acme.post("/service-calls", build_large()).json()["serviceCallId"]
    acme.post(f"/service-calls/{call}/cancel")
    operator("PATCH", "", {"bytesPerMinute": SIZE // 2})
    clear_buckets()
    writer = create_api(acme.tenant, ["write"])
    assert writer.post(f"/service-calls/{call}/replay").status_code == 202
    assert writer.post(f"/service-calls/{call}/replay", {}).status_code == 429


def test_a_length_that_is_no_number_is_refused_as_before(acme: Api) -> None:
    for length in ("-5", "x", "9" * 30):
        response = acme.client.generic(
            "POST", f"{acme.root}/service-calls", b"{}", "application/json", CONTENT_LENGTH=length,
            headers={"Authorization": f"Bearer {acme.key}"},
        )  # fmt: skip
        assert response.status_code in (400, 413), length


# --- what is stored -----------------------------------------------------------------------------------------------


def set_storage(api: Api, limit: int) -> None:
    update_tenant(api.tenant.tenant_id, max_stored_bytes=limit)


def test_above_the_storage_limit_new_calls_are_refused(acme: Api) -> None:
    set_storage(acme, SIZE + CALL_BYTES)
    assert acme.post("/service-calls", build_large(idempotencyKey="a")).status_code == 202
    refused = acme.post("/service-calls", build_submission())
    assert (refused.status_code, refused.json()["code"]) == (429, "storage_limit")
    assert refused["Retry-After"] == "60"
    timer = {"id": "t", "executeAt": "2030-01-01T00:00:00Z", "callbackUrl": "http://target.test/"}
    assert acme.post("/timers/create", timer).status_code == 429
    assert acme.post("/service-calls", build_large(idempotencyKey="a")).status_code == 202  # a repeat


def test_a_pending_timer_is_not_overwritten_above_the_limit(acme: Api) -> None:
    timer = {"id": "t", "executeAt": "2030-01-01T00:00:00Z", "callbackUrl": "http://target.test/"}
    assert acme.post("/timers/create", timer).status_code == 200
    set_storage(acme, CALL_BYTES)
    assert acme.post("/timers/create", {**timer, "payload": "x" * SIZE}).status_code == 429
    assert acme.post("/timers/update", {"timerId": "t", "payload": "x" * SIZE}).status_code == 429
    assert acme.post("/timers/delete", {"timerId": "t"}).status_code == 204


def test_what_is_stored_is_measured_and_freed_by_deleting(acme: Api, operator: Api) -> None:
    set_storage(acme, SIZE)
    call = acme.post("/service-calls", build_large()).json()["serviceCallId"]
    measure_storage(10)
    admission.forget_allowances()
    update_tenant(acme.tenant.tenant_id)  # a new profile
    assert acme.post("/service-calls", build_submission()).status_code == 429
    shown = operator.get("").json()
    assert shown["maxStoredBytes"] == SIZE
    assert SIZE < shown["storedBytes"] < SIZE + 2 * CALL_BYTES
    acme("DELETE", f"/service-calls/{call}")
    Tenant.objects.update(measure_storage_at=None)
    measure_storage(10)
    update_tenant(acme.tenant.tenant_id)
    assert acme.post("/service-calls", build_submission()).status_code == 202


def test_attempts_are_measured_too(acme: Api) -> None:
    call = ServiceCall.objects.for_tenant(acme.tenant.tenant_id).get(
        pk=(acme.tenant.tenant_id, acme.submit()["serviceCallId"])
    )
    before = compute_stored_bytes(acme.tenant.tenant_id)
    HttpExecutionFactory(service_call=call, response_body=BODY, request_body=None)
    assert compute_stored_bytes(acme.tenant.tenant_id) - before >= SIZE


def test_a_tenant_is_measured_again_only_after_a_while(acme: Api, intruder: Api) -> None:
    measure_storage(10)
    acme.submit()
    measure_storage(10)
    assert set(Tenant.objects.values_list("stored_bytes", flat=True)) == {0}


def test_measuring_stops_when_its_time_is_over_and_continues_with_the_others(
    acme: Api, intruder: Api
) -> None:
    acme.submit()
    Api(intruder.tenant, intruder.key).submit()
    for _ in range(2):
        measure_storage(0)
    assert all(Tenant.objects.values_list("stored_bytes", flat=True))


def test_the_limits_cost_no_query(acme: Api, django_assert_num_queries: Any) -> None:
    acme.submit()
    with django_assert_num_queries(6):
        acme.submit()

"""Repeats of earlier submissions are accepted although the tenant is at its pending limit."""

from __future__ import annotations

import pytest

from orchestration import admission
from orchestration.models import ServiceCall
from tests.api.conftest import Api, build_submission

pytestmark = pytest.mark.django_db

WITH_KEY = {"Idempotency-Key": "order-1"}
TIMER = {"id": "t", "executeAt": "2030-01-01T00:00:00Z", "callbackUrl": "http://target.test/"}


def fill(api: Api, operator: Api, most: int) -> None:
    operator("PATCH", "", {"maxPending": most})
    admission.forget_allowances()


def count_pending(api: Api) -> int:
    return ServiceCall.objects.for_tenant(api.tenant.tenant_id).filter(status="Scheduled").count()


def test_a_repeat_of_a_submission_is_accepted(acme: Api, operator: Api) -> None:
    first = acme.post("/service-calls", build_submission(), headers=WITH_KEY)
    fill(acme, operator, 1)
    again = acme.post("/service-calls", build_submission(), headers=WITH_KEY)
    assert (again.status_code, again.json()) == (202, first.json())
    assert again["Idempotent-Replayed"] == "true"
    assert acme.post("/service-calls", build_submission()).status_code == 429


def test_a_repeat_of_a_batch_is_accepted(acme: Api, operator: Api) -> None:
    batch = {"items": [build_submission(idempotencyKey=key) for key in ("a", "b")]}
    first = acme.post("/service-calls/batch", batch).json()
    fill(acme, operator, 2)
    again = acme.post("/service-calls/batch", batch).json()
    assert [item["replayed"] for item in again["items"]] == [True, True]
    assert [item["location"] for item in again["items"]] == [item["location"] for item in first["items"]]


def test_a_batch_needs_room_only_for_what_is_new(acme: Api, operator: Api) -> None:
    acme.submit(idempotencyKey="a")
    batch = {"items": [build_submission(idempotencyKey=key) for key in ("a", "b")]}
    fill(acme, operator, 1)
    assert acme.post("/service-calls/batch", batch).status_code == 429
    fill(acme, operator, 2)
    assert acme.post("/service-calls/batch", batch).json()["accepted"] == 2
    assert count_pending(acme) == 2


def test_a_repeat_of_a_replay_is_accepted(acme: Api, operator: Api) -> None:
    path = f"/service-calls/{acme.submit()['serviceCallId']}"
    acme.post(f"{path}/cancel")
    first = acme.post(f"{path}/replay", headers=WITH_KEY)
    fill(acme, operator, 1)
    again = acme.post(f"{path}/replay", headers=WITH_KEY)
    assert again.status_code == 202
    assert again.json()["serviceCallId"] == first.json()["serviceCallId"]
    assert acme.post(f"{path}/replay").status_code == 429


def test_a_pending_timer_can_be_set_again(acme: Api, operator: Api) -> None:
    assert acme.post("/timers/create", TIMER).status_code == 200
    fill(acme, operator, 1)
    assert acme.post("/timers/create", {**TIMER, "payload": 2}).json()["payload"] == 2
    assert acme.post("/timers/create", {**TIMER, "id": "other"}).status_code == 429

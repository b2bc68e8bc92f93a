"""An inactive tenant accepts nothing new, not even from operators. Its calls can still be read and ended."""

from __future__ import annotations

from typing import Any

import pytest

from orchestration.models import ServiceCall
from tests.api.conftest import Api, build_submission

pytestmark = pytest.mark.django_db

TIMER = {"id": "t", "executeAt": "2030-01-01T00:00:00Z", "callbackUrl": "http://target.test/"}


@pytest.fixture
def calls(operator: Api) -> dict[str, str]:
    ended, waiting = (operator.submit()["serviceCallId"] for _ in range(2))
    operator.post(f"/service-calls/{ended}/cancel")
    assert operator.post("/timers/create", TIMER).status_code == 200
    assert operator("PATCH", "", {"active": False}).status_code == 200
    return {"ended": ended, "waiting": waiting}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/service-calls", build_submission()),
        ("/service-calls/batch", {"items": [build_submission()]}),
        ("/service-calls/{ended}/replay", None),
        ("/timers/create", {**TIMER, "id": "another"}),
        ("/timers/create", TIMER),
        ("/timers/update", {"timerId": "t", "payload": 1}),
    ],
)
def test_an_inactive_tenant_accepts_nothing_new(
    operator: Api, calls: dict[str, str], path: str, body: Any
) -> None:
    there = ServiceCall.objects.for_tenant(operator.tenant.tenant_id).count()
    refused = operator.post(path.format(**calls), body)
    assert (refused.status_code, refused.json()["code"]) == (409, "tenant_inactive")
    assert ServiceCall.objects.for_tenant(operator.tenant.tenant_id).count() == there


def test_the_calls_of_an_inactive_tenant_can_be_read_and_ended(operator: Api, calls: dict[str, str]) -> None:
    assert operator.get("/service-calls").status_code == 200
    assert operator.post("/timers/get", {"timerId": "t"}).status_code == 200
    assert operator.post(f"/service-calls/{calls['waiting']}/cancel").status_code == 202
    assert operator.post("/timers/delete", {"timerId": "t"}).status_code == 204


def test_a_tenant_that_is_activated_again_accepts_calls(operator: Api, calls: dict[str, str]) -> None:
    assert operator("PATCH", "", {"active": True}).status_code == 200
    assert operator.post("/service-calls", build_submission()).status_code == 202

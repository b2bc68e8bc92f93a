"""Nothing new is taken for a tenant that is not active, also from an operator; what is there can be read and ended."""

from __future__ import annotations

from typing import Any

import pytest

from orchestration.models import ServiceCall
from tests.api.conftest import Api, submission

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
        ("/service-calls", submission()),
        ("/service-calls/batch", {"items": [submission()]}),
        ("/service-calls/{ended}/replay", None),
        ("/timers/create", {**TIMER, "id": "another"}),
        ("/timers/create", TIMER),
        ("/timers/update", {"timerId": "t", "payload": 1}),
    ],
)
def test_nothing_new_is_taken(operator: Api, calls: dict[str, str], path: str, body: Any) -> None:
    there = ServiceCall.objects.for_tenant(operator.tenant.tenant_id).count()
    refused = operator.post(path.format(**calls), body)
    assert (refused.status_code, refused.json()["code"]) == (409, "tenant_inactive")
    assert ServiceCall.objects.for_tenant(operator.tenant.tenant_id).count() == there


def test_what_is_there_can_be_read_and_ended(operator: Api, calls: dict[str, str]) -> None:
    assert operator.get("/service-calls").status_code == 200
    assert operator.post("/timers/get", {"timerId": "t"}).status_code == 200
    assert operator.post(f"/service-calls/{calls['waiting']}/cancel").status_code == 202
    assert operator.post("/timers/delete", {"timerId": "t"}).status_code == 204


def test_an_active_one_takes_it_again(operator: Api, calls: dict[str, str]) -> None:
    assert operator("PATCH", "", {"active": True}).status_code == 200
    assert operator.post("/service-calls", submission()).status_code == 202

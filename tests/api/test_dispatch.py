"""Operators pause and resume dispatch by the API. Tenants can neither see nor change it."""

from __future__ import annotations

import pytest

from eventservice.operators.models import OperatorAction
from eventservice.tenants.keys import create_key
from tests.api.conftest import Api, get_errors
from timers.pause import find_pause

pytestmark = pytest.mark.django_db

PATH = "/api/v1/dispatch"


def test_an_operator_pauses_and_resumes(operator: Api) -> None:
    assert operator.get(PATH).json() == {"paused": False, "since": None, "pausedBy": None, "reason": None}
    paused = operator("PATCH", PATH, {"paused": True, "reason": "Maintenance"}).json()
    assert (paused["paused"], paused["reason"]) == (True, "Maintenance")
    assert paused["pausedBy"].startswith("key:")
    # A repeat keeps the first reason.
    assert operator("PATCH", PATH, {"paused": True, "reason": "Another"}).json() == paused
    assert operator.get(PATH).json() == paused
    # Calls are accepted meanwhile.
    assert operator.submit()["status"] == "Scheduled"
    assert operator("PATCH", PATH, {"paused": False}).json()["paused"] is False
    assert [entry.action for entry in OperatorAction.across_tenants.order_by("id")] == [
        "dispatch-pause",
        "dispatch-resume",
    ]


def test_a_tenant_neither_sees_nor_changes_it(acme: Api) -> None:
    for response in (acme.get(PATH), acme("PATCH", PATH, {"paused": True})):
        assert (response.status_code, response.json()["code"]) == (403, "operators_only")
    assert find_pause() is None


def test_it_takes_the_scope_admin_to_change_it(operator: Api) -> None:
    key = create_key(None, ["read", "write"])[1]
    headers = {"Authorization": f"Bearer {key}"}
    assert operator("GET", PATH, headers=headers).status_code == 200
    response = operator("PATCH", PATH, {"paused": True}, headers=headers)
    assert (response.status_code, response.json()["code"]) == (403, "scope_missing")
    assert find_pause() is None


def test_a_wrong_document_is_refused_with_the_name_of_the_member(operator: Api) -> None:
    response = operator("PATCH", PATH, {"reason": "x" * 201})
    assert get_errors(response) == {
        "/paused": "is required",
        "/reason": "must be at most 200 characters",
    }

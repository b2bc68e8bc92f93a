"""Every endpoint answers ids of another tenant with the same 404 as missing ones, byte for byte (property P10)."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from eventservice.tenants.directory import declare_namespace
from eventservice.tenants.keys import create_key
from tests.api.conftest import ALL, Api
from tests.api.endpoints import Endpoint, list_endpoints

pytestmark = pytest.mark.django_db

ALL_ENDPOINTS = list_endpoints()
OF_A_TENANT = [endpoint for endpoint in ALL_ENDPOINTS if "tenant_id" in endpoint.names]
OF_ONE_THING = [endpoint for endpoint in OF_A_TENANT if endpoint.names - {"tenant_id", "tag"}]
COLLECTIONS = [
    endpoint for endpoint in OF_A_TENANT if endpoint.method == "GET" and endpoint.names == {"tenant_id"}
]
MISSING = uuid.UUID("01900000-0000-7000-8000-000000000000")
CORRELATION = {"X-Correlation-Id": "01900000-0000-7000-8000-00000000abcd"}
TIMER = {"namespace": "default", "timerId": "secret-timer"}


@pytest.fixture
def things(acme: Api) -> dict[str, Any]:
    """Return one object of each kind that Acme owns, by the name of its URL parameter."""
    declare_namespace(acme.tenant.tenant_id, "secret-space", 4)
    key, _ = create_key(acme.tenant.tenant_id, ALL, name="secret-key")
    acme.post("/timers/create", {
        "namespace": "default", "id": TIMER["timerId"],
        "executeAt": "2030-01-01T00:00:00Z", "callbackUrl": "http://target.test/",
    })  # fmt: skip
    call = acme.submit(name="secret-call", tags=["secret-tag"])
    return {
        "service_call_id": call["serviceCallId"],
        "correlation_id": call["correlationId"],
        "name": "secret-space",
        "key_id": key.key_id,
        "tag": "secret-tag",
    }


ABSENT = {
    "service_call_id": MISSING,
    "correlation_id": MISSING,
    "name": "missing",
    "key_id": "missing",
    "tag": "secret-tag",
}


def ask(api: Api, endpoint: Endpoint, body: Any = None, **values: Any) -> tuple[int, bytes]:
    if body is None and endpoint.method in ("POST", "PATCH"):
        body = {}
    response = api(endpoint.method, endpoint.path(**values), body, headers=CORRELATION)
    return response.status_code, response.content


def test_the_endpoints_are_found_in_the_url_map() -> None:
    assert len(OF_A_TENANT) >= 30
    assert {"service_call_id", "correlation_id", "name", "key_id", "tag"} <= set().union(
        *(endpoint.names for endpoint in OF_ONE_THING)
    )


@pytest.mark.parametrize("endpoint", OF_A_TENANT, ids=str)
def test_another_tenant_looks_like_a_missing_one(
    intruder: Api, acme: Api, things: Any, endpoint: Endpoint
) -> None:
    theirs = ask(intruder, endpoint, tenant_id=acme.tenant.tenant_id, **things)
    assert theirs == ask(intruder, endpoint, tenant_id=MISSING, **things)
    assert theirs == ask(intruder, endpoint, tenant_id=MISSING, **ABSENT)
    assert theirs[0] == 404


@pytest.mark.parametrize("endpoint", OF_ONE_THING, ids=str)
def test_an_object_of_another_tenant_looks_like_a_missing_one(
    intruder: Api, things: Any, endpoint: Endpoint
) -> None:
    own = intruder.tenant.tenant_id
    theirs = ask(intruder, endpoint, tenant_id=own, **things)
    assert theirs == ask(intruder, endpoint, tenant_id=own, **ABSENT)
    assert theirs[0] == 404


@pytest.mark.parametrize("endpoint", OF_ONE_THING, ids=str)
def test_the_owner_finds_its_own_objects(acme: Api, things: Any, endpoint: Endpoint) -> None:
    assert ask(acme, endpoint, tenant_id=acme.tenant.tenant_id, **things)[0] != 404


@pytest.mark.parametrize("endpoint", COLLECTIONS, ids=str)
def test_objects_of_another_tenant_are_in_no_list(
    intruder: Api, acme: Api, things: Any, endpoint: Endpoint
) -> None:
    status, content = ask(intruder, endpoint, tenant_id=intruder.tenant.tenant_id)
    assert status == 200
    for secret in (*things.values(), TIMER["timerId"], "secret-", str(acme.tenant.tenant_id), "acme"):
        assert str(secret).encode() not in content


@pytest.mark.parametrize("action", ["get", "update", "delete"])
def test_a_timer_of_another_tenant_looks_like_a_missing_one(intruder: Api, things: Any, action: str) -> None:
    answers = [
        intruder.post(f"/timers/{action}", {**TIMER, "timerId": name}, headers=CORRELATION).content
        for name in (TIMER["timerId"], "missing")
    ]
    assert answers[0] == answers[1]
    assert b'"status": 404' in answers[0]


def test_statistics_of_another_tenant_look_like_those_of_a_missing_one(intruder: Api, acme: Api) -> None:
    answers = [
        intruder.get(f"/api/v1/stats?tenantId={tenant_id}", headers=CORRELATION).content
        for tenant_id in (acme.tenant.tenant_id, MISSING)
    ]
    assert answers[0] == answers[1]
    assert b'"status": 404' in answers[0]


@pytest.mark.parametrize("endpoint", [e for e in ALL_ENDPOINTS if "tenant_id" not in e.names], ids=str)
def test_endpoints_without_a_tenant_are_for_operators_or_show_only_the_own_tenant(
    intruder: Api, acme: Api, things: Any, endpoint: Endpoint
) -> None:
    status, content = ask(intruder, endpoint)
    shows_own = (endpoint.method, endpoint.route) in (("GET", "api/v1/stats"), ("GET", "api/v1/tenants"))
    assert status == 403 or shows_own or endpoint.route.startswith("api/v1/docs")
    for secret in (*things.values(), str(acme.tenant.tenant_id), "acme"):
        assert str(secret).encode() not in content


@pytest.mark.parametrize("endpoint", OF_A_TENANT, ids=str)
def test_without_a_key_every_endpoint_is_refused(acme: Api, things: Any, endpoint: Endpoint) -> None:
    stranger = Api(acme.tenant, "es_dev_nobody_nothing")
    assert ask(stranger, endpoint, tenant_id=acme.tenant.tenant_id, **things)[0] == 401

"""A key that asks too often is stopped, and nobody who could do something about it."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from tests.api.conftest import Api, api_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def leaked(acme: Api, operator: Api) -> Api:
    """A key of one of its applications, which has asked as often as the tenant may."""
    operator("PATCH", "", {"requestsPerMinute": 3})
    key = api_of(acme.tenant, ["read", "write"])
    assert statuses(key, "/service-calls") == [200, 200, 200, 429]
    return key


def statuses(api: Api, path: str) -> list[int]:
    return [api.get(path).status_code for _ in range(4)]


def test_an_operator_takes_no_turn_of_a_tenant(operator: Api, leaked: Api) -> None:
    looked = operator.get("/service-calls")
    assert (looked.status_code, "RateLimit" in looked) == (200, False)
    assert operator("PATCH", "", {"requestsPerMinute": 4}).status_code == 200


def test_an_operators_session_takes_none_either(acme: Api, leaked: Api) -> None:
    client = Client()
    client.force_login(User.objects.create_user("olga", is_staff=True))
    assert client.get(acme.root + "/service-calls").status_code == 200


def test_a_tenants_administrator_finds_the_leaked_key_and_revokes_it(acme: Api, leaked: Api) -> None:
    key_id = leaked.key.split("_")[2]
    assert key_id in {key["keyId"] for key in acme.get("/api-keys").json()["items"]}
    revoked = acme.post(f"/api-keys/{key_id}/revoke")
    assert (revoked.status_code, revoked["RateLimit-Policy"]) == (204, '"administration";q=3;w=60')


@pytest.mark.parametrize("path", ["", "/namespaces", "/api-keys"])
def test_administration_has_its_limit_too(acme: Api, leaked: Api, path: str) -> None:
    assert statuses(acme, path) == [200, 200, 200, 429]


@pytest.mark.parametrize("asked", [("GET", "/api-keys"), ("POST", "/api-keys"), ("PATCH", "")])
def test_a_key_that_may_not_administer_takes_no_turn_of_who_may(
    acme: Api, leaked: Api, asked: tuple[Any, ...]
) -> None:
    assert [leaked(*asked).status_code for _ in range(4)] == [429] * 4
    assert acme.get("/api-keys").status_code == 200

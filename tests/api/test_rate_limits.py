"""The rate limit stops the keys of a tenant, but not administration or operators."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from tests.api.conftest import Api, create_api

pytestmark = pytest.mark.django_db


@pytest.fixture
def leaked(acme: Api, operator: Api) -> Api:
    """Return a key without the scope admin that has used up the rate limit of its tenant."""
    operator("PATCH", "", {"requestsPerMinute": 3})
    key = create_api(acme.tenant, ["read", "write"])
    assert list_statuses(key, "/service-calls") == [200, 200, 200, 429]
    return key


def list_statuses(api: Api, path: str) -> list[int]:
    return [api.get(path).status_code for _ in range(4)]


def test_an_operator_does_not_use_up_the_rate_limit_of_a_tenant(operator: Api, leaked: Api) -> None:
    looked = operator.get("/service-calls")
    assert (looked.status_code, "RateLimit" in looked) == (200, False)
    assert operator("PATCH", "", {"requestsPerMinute": 4}).status_code == 200


def test_an_operators_session_does_not_use_it_up_either(acme: Api, leaked: Api) -> None:
    client = Client()
    client.force_login(User.objects.create_user("olga", is_staff=True))
    assert client.get(acme.root + "/service-calls").status_code == 200


def test_an_admin_key_can_revoke_a_leaked_key_at_the_rate_limit(acme: Api, leaked: Api) -> None:
    key_id = leaked.key.split("_")[2]
    assert key_id in {key["keyId"] for key in acme.get("/api-keys").json()["items"]}
    revoked = acme.post(f"/api-keys/{key_id}/revoke")
    assert (revoked.status_code, revoked["RateLimit-Policy"]) == (204, '"administration";q=3;w=60')


@pytest.mark.parametrize("path", ["", "/namespaces", "/api-keys"])
def test_administration_has_a_rate_limit_of_its_own(acme: Api, leaked: Api, path: str) -> None:
    assert list_statuses(acme, path) == [200, 200, 200, 429]


@pytest.mark.parametrize("asked", [("GET", "/api-keys"), ("POST", "/api-keys"), ("PATCH", "")])
def test_other_keys_do_not_use_up_the_limit_of_administration(
    acme: Api, leaked: Api, asked: tuple[Any, ...]
) -> None:
    assert [leaked(*asked).status_code for _ in range(4)] == [429] * 4
    assert acme.get("/api-keys").status_code == 200

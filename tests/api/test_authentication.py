"""A key is what opens the API, for its tenant, its scopes and its time."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from eventservice.api.auth import KEPT_SECONDS, forget_keys
from eventservice.kernel.now import db_now
from eventservice.tenants.keys import create_key, revoke_key
from eventservice.tenants.models import ApiKey
from tests.api.conftest import ALL, Api, api_of, submission

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        "Bearer ",
        "Bearer es_dev_x_y",
        "Bearer nonsense",
        "Basic YTpi",
        "Bearer es_dev_é_\x7f",
        "Bearer a b c",
    ],
)
def test_without_a_good_key_nobody_comes_in(acme: Api, header: str) -> None:
    response = acme.get("/service-calls", headers={"Authorization": header})
    assert response.status_code == 401
    assert response["WWW-Authenticate"].startswith("Bearer")
    assert response.json()["code"] == "not_authenticated"


def test_a_wrong_secret_opens_nothing(acme: Api) -> None:
    wrong = acme.key[:-1] + ("a" if acme.key[-1] != "a" else "b")
    assert acme.get("/service-calls", headers={"Authorization": f"Bearer {wrong}"}).status_code == 401


def test_an_expired_key_opens_nothing(acme: Api) -> None:
    _, text = create_key(acme.tenant.tenant_id, ALL, expires_at=db_now() - timedelta(seconds=1))
    assert Api(acme.tenant, text).get("/service-calls").status_code == 401


def test_a_revoked_key_opens_nothing_within_a_second(acme: Api) -> None:
    assert acme.get("/service-calls").status_code == 200
    revoke_key(acme.key.split("_")[2])
    assert KEPT_SECONDS <= 2
    forget_keys()
    assert acme.get("/service-calls").status_code == 401


def test_a_key_is_read_from_the_database_once_in_a_while(
    acme: Api, django_assert_num_queries: object
) -> None:
    acme.get("/service-calls")
    with django_assert_num_queries(0):  # type: ignore[operator]
        assert acme.post("/service-calls/batch").status_code == 415


def test_its_use_is_noted(acme: Api) -> None:
    acme.get("/service-calls")
    assert ApiKey.objects.for_tenant(acme.tenant.tenant_id).get().last_used_at is not None


@pytest.mark.parametrize(
    ("scopes", "reading", "writing", "ruling"),
    [(["read"], 200, 403, 403), (["write"], 403, 202, 403), (["admin", "read"], 200, 403, 201)],
)
def test_a_scope_opens_what_it_names(
    acme: Api, scopes: list[str], reading: int, writing: int, ruling: int
) -> None:
    key = api_of(acme.tenant, scopes)
    assert key.get("/service-calls").status_code == reading
    assert key.post("/service-calls", submission()).status_code == writing
    assert key.post("/namespaces", {"name": "n"}).status_code == ruling


def test_an_operator_may_act_in_every_tenant(operator: Api, intruder: Api) -> None:
    for tenant in (operator.tenant, intruder.tenant):
        assert Api(tenant, operator.key).post("/service-calls", submission()).status_code == 202


def test_the_keys_of_an_inactive_tenant_open_nothing(acme: Api, operator: Api) -> None:
    assert acme.get("/service-calls").status_code == 200
    assert operator("PATCH", "", {"active": False}).status_code == 200
    forget_keys()
    assert acme.get("/service-calls").status_code == 401
    assert operator.get("/service-calls").status_code == 200


def signed_in(**rights: Any) -> Client:
    client = Client(enforce_csrf_checks=True)
    client.force_login(User.objects.create_user("olga", **rights))
    return client


def test_a_signed_in_operator_may_look(acme: Api) -> None:
    viewer = signed_in(is_staff=True)
    assert viewer.get(acme.root + "/service-calls").status_code == 200
    assert viewer.get("/api/v1/nodes").status_code == 200


def test_a_signed_in_person_who_is_no_operator_may_not(acme: Api) -> None:
    assert signed_in().get(acme.root + "/service-calls").status_code == 401


def test_a_session_needs_its_token_to_write(acme: Api) -> None:
    response = signed_in(is_staff=True, is_superuser=True).post(
        acme.root + "/service-calls", submission(), content_type="application/json"
    )
    assert response.status_code == 403
    assert response["Content-Type"] == "application/problem+json"


def test_a_viewer_may_not_write_and_an_editor_may(acme: Api) -> None:
    client = Client()
    user = User.objects.create_user("vera", is_staff=True)
    client.force_login(user)
    path = acme.root + "/service-calls"
    assert client.post(path, submission(), content_type="application/json").status_code == 403
    user.user_permissions.add(Permission.objects.get(codename="change_servicecall"))
    assert client.post(path, submission(), content_type="application/json").status_code == 202

"""A key gives access to its own tenant, with its scopes, until it expires. Sessions of operators may read."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client

from eventservice.api.authentication import CACHE_SECONDS
from eventservice.db.now import db_now
from eventservice.kernel.ttl_cache import clear_caches
from eventservice.tenants.keys import create_key, revoke_key
from eventservice.tenants.models import ApiKey
from tests.api.conftest import ALL, Api, build_submission, create_api
from tests.api.endpoints import list_endpoints

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
def test_a_request_without_a_valid_key_is_refused(acme: Api, header: str) -> None:
    response = acme.get("/service-calls", headers={"Authorization": header})
    assert response.status_code == 401
    assert response["WWW-Authenticate"].startswith("Bearer")
    assert response.json()["code"] == "not_authenticated"


@pytest.mark.parametrize("form", ["{}", "Token {}", "Basic {}", "Bearer", "Bearer:{}"])
def test_a_header_without_bearer_is_told_its_form(acme: Api, form: str) -> None:
    response = acme.get("/service-calls", headers={"Authorization": form.format(acme.key)})
    assert response.status_code == 401
    assert response.json()["detail"] == "Send `Authorization: Bearer es_…`."
    assert acme.key not in response.content.decode()


def test_a_key_with_a_wrong_secret_is_refused(acme: Api) -> None:
    wrong = acme.key[:-1] + ("a" if acme.key[-1] != "a" else "b")
    assert acme.get("/service-calls", headers={"Authorization": f"Bearer {wrong}"}).status_code == 401


def test_an_expired_key_is_refused(acme: Api) -> None:
    _, text = create_key(acme.tenant.tenant_id, ALL, expires_at=db_now() - timedelta(seconds=1))
    assert Api(acme.tenant, text).get("/service-calls").status_code == 401


def test_a_revoked_key_is_refused_within_a_second(acme: Api) -> None:
    assert acme.get("/service-calls").status_code == 200
    revoke_key(acme.key.split("_")[2])
    assert CACHE_SECONDS <= 2
    clear_caches()
    assert acme.get("/service-calls").status_code == 401


def test_a_key_is_cached_for_a_moment(acme: Api, django_assert_num_queries: object) -> None:
    acme.get("/service-calls")
    with django_assert_num_queries(0):  # type: ignore[operator]
        assert acme.post("/service-calls/batch").status_code == 415


def test_the_use_of_a_key_is_recorded(acme: Api) -> None:
    acme.get("/service-calls")
    assert ApiKey.objects.for_tenant(acme.tenant.tenant_id).get().last_used_at is not None


@pytest.mark.parametrize(
    ("scopes", "reading", "writing", "ruling"),
    [(["read"], 200, 403, 403), (["write"], 403, 202, 403), (["admin", "read"], 200, 403, 201)],
)
def test_a_key_can_do_what_its_scopes_allow(
    acme: Api, scopes: list[str], reading: int, writing: int, ruling: int
) -> None:
    key = create_api(acme.tenant, scopes)
    assert key.get("/service-calls").status_code == reading
    assert key.post("/service-calls", build_submission()).status_code == writing
    assert key.post("/namespaces", {"name": "n"}).status_code == ruling


SECRET = "a body that only readers may see"


def test_a_key_that_may_only_write_reads_nothing_of_what_was_stored_before(acme: Api) -> None:
    spec = {**build_submission()["requestSpec"], "body": SECRET}
    call = acme.submit(requestSpec=spec, idempotencyKey="once")["serviceCallId"]
    canceled = acme.submit(requestSpec=spec)["serviceCallId"]
    acme.post(f"/service-calls/{canceled}/cancel")
    timer = {"id": "t", "executeAt": "2030-01-01T00:00:00Z", "callbackUrl": "http://target.test/"}
    acme.post("/timers/create", {**timer, "payload": SECRET})
    writer = create_api(acme.tenant, ["write"])
    receipt = {"serviceCallId": call, "tenantId": str(acme.tenant.tenant_id)}

    repeated = writer.post("/service-calls", build_submission(requestSpec=spec, idempotencyKey="once"))
    assert (repeated.status_code, repeated.json()) == (202, receipt)
    for method, path, body in (
        ("PATCH", f"/service-calls/{call}", {}),
        ("POST", f"/service-calls/{call}/run-now", None),
        ("POST", f"/service-calls/{call}/cancel", None),
    ):
        assert writer(method, path, body).json() == receipt, path
    replayed = writer.post(f"/service-calls/{canceled}/replay")
    assert (replayed.status_code, set(replayed.json())) == (202, set(receipt))
    for path in ("update", "create"):
        document = {"timerId": "t"} if path == "update" else timer
        assert writer.post(f"/timers/{path}", document).json() == {"namespace": "default", "timerId": "t"}


def test_every_response_to_a_write_only_key_hides_what_was_stored(acme: Api) -> None:
    """Each operation that needs `write` is called, whatever it answers."""
    spec = {**build_submission()["requestSpec"], "body": SECRET}
    call = acme.submit(requestSpec=spec)
    known = {
        "tenant_id": acme.tenant.tenant_id,
        "service_call_id": call["serviceCallId"],
        "correlation_id": call["correlationId"],
        "tag": "x",
        "name": "default",
        "key_id": "none",
    }
    timer = {"id": "t", "executeAt": "2030-01-01T00:00:00Z", "callbackUrl": "http://target.test/"}
    acme.post("/timers/create", {**timer, "payload": SECRET})
    writer = create_api(acme.tenant, ["write"])
    for endpoint in list_endpoints():
        bodies = [None] if endpoint.method == "GET" else [None, {}, {"timerId": "t"}, {"id": "t"}]
        for body in bodies:
            response = writer(endpoint.method, endpoint.path(**known), body)
            assert SECRET not in response.content.decode(), (endpoint, body)


def test_an_operators_key_without_read_sees_no_settings(acme: Api) -> None:
    key = Api(acme.tenant, create_key(None, ["admin"])[1])
    assert key("PATCH", "", {}).json() == {"tenantId": str(acme.tenant.tenant_id)}


def test_an_operator_may_act_in_every_tenant(operator: Api, intruder: Api) -> None:
    for tenant in (operator.tenant, intruder.tenant):
        assert Api(tenant, operator.key).post("/service-calls", build_submission()).status_code == 202


def test_the_keys_of_an_inactive_tenant_are_refused(acme: Api, operator: Api) -> None:
    assert acme.get("/service-calls").status_code == 200
    assert operator("PATCH", "", {"active": False}).status_code == 200
    clear_caches()
    assert acme.get("/service-calls").status_code == 401
    assert operator.get("/service-calls").status_code == 200


def sign_in(**rights: Any) -> Client:
    client = Client(enforce_csrf_checks=True)
    client.force_login(User.objects.create_user("olga", **rights))
    return client


def test_a_signed_in_operator_may_look(acme: Api) -> None:
    viewer = sign_in(is_staff=True)
    assert viewer.get(acme.root + "/service-calls").status_code == 200
    assert viewer.get("/api/v1/nodes").status_code == 200


def test_a_signed_in_person_who_is_no_operator_may_not(acme: Api) -> None:
    assert sign_in().get(acme.root + "/service-calls").status_code == 401


def test_a_session_needs_its_token_to_write(acme: Api) -> None:
    response = sign_in(is_staff=True, is_superuser=True).post(
        acme.root + "/service-calls", build_submission(), content_type="application/json"
    )
    assert response.status_code == 403
    assert response["Content-Type"] == "application/problem+json"


@pytest.mark.parametrize("role", ["viewer", "operator", "admin"])
def test_a_session_only_reads(acme: Api, role: str) -> None:
    # Operators make changes through the console, which records them.
    client = Client()
    user = User.objects.create_user("vera", is_staff=True)
    user.groups.add(Group.objects.get(name=role))
    client.force_login(user)
    call = acme.submit()["serviceCallId"]
    asked: list[tuple[str, str, Any]] = [
        ("POST", "/service-calls", build_submission()),
        ("POST", f"/service-calls/{call}/cancel", {}),
        ("DELETE", f"/service-calls/{call}", {}),
        ("POST", "/api-keys", {"scopes": ["read"]}),
        ("PATCH", "", {"maxPending": 1}),
    ]
    for method, path, body in asked:
        answer = client.generic(method, acme.root + path, json.dumps(body), "application/json")
        assert (answer.status_code, answer.json()["code"]) == (403, "session_reads_only"), path
    assert client.get(f"{acme.root}/service-calls/{call}").json()["status"] == "Scheduled"


def test_a_session_may_send_a_post_that_only_reads(acme: Api) -> None:
    client = Client()
    client.force_login(User.objects.create_user("vera", is_staff=True))
    answer = client.post(acme.root + "/timers/get", {"timerId": "not there"}, content_type="application/json")
    assert answer.status_code == 404


FORM = "application/x-www-form-urlencoded"
ODD = {
    "a form": ("/timers/get", FORM, b"[1]", 415),
    "half a form": ("/timers/get", "multipart/form-data; boundary=x", b"--y", 415),
    "arrays in arrays": ("/timers/get", "application/json", b"[" * 100_000, 400),
    "not UTF-8": ("/timers/get", "application/json", b"\xff", 400),
    "no object": ("/timers/get", "application/json", b"[1]", 400),
    "a form to write": ("/service-calls", FORM, b"1", 403),
    "arrays in arrays to write": ("/service-calls", "application/json", b"[" * 100_000, 403),
}


@pytest.mark.parametrize(("path", "kind", "body", "status"), ODD.values(), ids=ODD)
def test_a_session_gets_the_same_errors_of_a_body_as_a_key(
    acme: Api, path: str, kind: str, body: bytes, status: int
) -> None:
    reader, client = create_api(acme.tenant, ["read"]), sign_in(is_staff=True)
    client.cookies["csrftoken"] = token = "t" * 32
    told = client.generic("POST", acme.root + path, body, kind, headers={"X-CSRFToken": token})
    by_key = reader("POST", path, raw=body, headers={"Content-Type": kind}).json()
    assert told.status_code == by_key["status"] == status
    if status == 403:
        assert told.json()["code"] == "session_reads_only"
    else:
        assert (told.json()["code"], told.json()["detail"]) == (by_key["code"], by_key["detail"])


def test_a_key_that_only_reads_may_get_a_timer(acme: Api) -> None:
    key = create_api(acme.tenant, ["read"])
    timer = {"id": "t", "executeAt": "2030-01-01T00:00:00Z", "callbackUrl": "http://target.test/"}
    assert acme.post("/timers/create", timer).status_code == 200
    assert key.post("/timers/get", {"timerId": "t"}).status_code == 200
    assert key.post("/timers/delete", {"timerId": "t"}).status_code == 403

"""Tenants, their namespaces and their keys."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from eventservice.db.now import db_now, pin_time
from eventservice.kernel.ttl_cache import clear_caches
from eventservice.tenants.directory import update_tenant
from eventservice.tenants.models import ApiKey, Tenant
from execution.redaction import MASK
from tests.api.conftest import SPEC, Api, create_api, get_errors
from tests.factories import ServiceCallFactory

pytestmark = pytest.mark.django_db


def test_a_new_tenant_can_be_used_at_once(operator: Api) -> None:
    made = operator.post("/api/v1/tenants", {"name": "fresh", "maxPending": 7, "allowedHosts": ["a.test"]})
    assert made.status_code == 201
    tenant = made.json()
    assert (tenant["maxPending"], tenant["allowedHosts"], tenant["signs"]) == (7, ["a.test"], False)
    assert operator.get(made["Location"]).json() == tenant
    fresh = Api(Tenant.objects.get(name="fresh"), operator.key)
    assert fresh.get("/namespaces").json()["items"][0]["name"] == "default"
    assert fresh.submit()["tenantId"] == tenant["tenantId"]


def test_a_tenant_sees_what_it_uses_of_its_limits(acme: Api, intruder: Api, operator: Api) -> None:
    update_tenant(acme.tenant.tenant_id, max_pending=7)
    Tenant.objects.filter(pk=acme.tenant.tenant_id).update(stored_bytes=4096)
    for status in ("Scheduled", "Scheduled", "Running", "Succeeded"):
        ServiceCallFactory(tenant_id=acme.tenant.tenant_id, status=status)
    expected = {
        "inFlight": 1, "maxInFlight": 1000, "pending": 2, "maxPending": 7, "storedBytes": 4096,
        "maxStoredBytes": 100_000_000_000, "refusals": [],
    }  # fmt: skip
    for api in (acme, operator):
        assert api.get("/usage").json() == expected
    assert intruder.get("/usage").json()["pending"] == 0
    assert intruder.get(f"{acme.root}/usage").status_code == 404


def test_two_tenants_cannot_have_the_same_name(operator: Api) -> None:
    assert operator.post("/api/v1/tenants", {"name": "acme"}).status_code == 409


def test_an_invalid_tenant_is_refused(operator: Api) -> None:
    wrong = {
        "name": "Not Fit",
        "maxPending": 0,
        "active": "yes",
        "allowedHosts": "x",
        "signingSecret": "short",
        "id": 1,
    }
    assert sorted(get_errors(operator.post("/api/v1/tenants", wrong))) == [
        "/active", "/allowedHosts", "/id", "/maxPending", "/name", "/signingSecret",
    ]  # fmt: skip


def test_a_host_is_stored_as_it_is_parsed_from_a_url(operator: Api) -> None:
    given = ["Shop.Test", "[2001:DB8::0:1]", "2001:db8::2", "192.0.2.1"]
    changed = operator("PATCH", "", {"allowedHosts": given})
    assert changed.json()["allowedHosts"] == ["shop.test", "2001:db8::1", "2001:db8::2", "192.0.2.1"]


@pytest.mark.parametrize(
    "host", ["http://x.test", "*.foo.test", "x.test:80", "a b", "[::1]:80", "[::1", "x.test/", "256.1.1.1", "ü.test"]
)  # fmt: skip
def test_a_host_that_could_never_match_is_refused(operator: Api, host: str) -> None:
    wrong = get_errors(operator("PATCH", "", {"allowedHosts": ["fine.test", host]}))
    assert wrong == {"/allowedHosts/1": "must be a host name or address, without scheme, port or *"}


def test_a_signing_secret_is_stored_encrypted_and_never_shown(operator: Api) -> None:
    secret = "whsec_" + "A" * 40
    shown = operator("PATCH", "", {"signingSecret": secret})
    assert shown.json()["signs"] is True
    assert secret.encode() not in shown.content
    assert secret not in Tenant.objects.get(pk=operator.tenant.tenant_id).signing_secret
    refused = operator("PATCH", "", {"signingSecret": None})
    assert list(get_errors(refused)) == ["/signingSecret"]
    assert operator.get("").json()["signs"] is True
    assert operator("PATCH", "", {"signingSecret": ""}).json()["signs"] is False


def test_tenants_are_listed_by_name_page_by_page(operator: Api, intruder: Api) -> None:
    first = operator.get("/api/v1/tenants?limit=1").json()
    rest = operator.get(f"/api/v1/tenants?limit=1&cursor={first['nextCursor']}").json()
    assert [tenant["name"] for tenant in first["items"] + rest["items"]] == ["acme", "intruder"]


def test_a_tenant_finds_only_itself_in_the_list(acme: Api, intruder: Api) -> None:
    for one in (acme, intruder):
        listed = one.get("/api/v1/tenants").json()
        assert [tenant["tenantId"] for tenant in listed["items"]] == [str(one.tenant.tenant_id)]
        assert listed["nextCursor"] is None
    assert acme.post("/api/v1/tenants", {"name": "fresh"}).json()["code"] == "operators_only"


def test_a_tenant_can_read_itself_but_not_change_itself(acme: Api) -> None:
    assert acme.get("").json()["name"] == "acme"
    assert acme("PATCH", "", {"maxPending": 1}).status_code == 403


def test_the_shards_of_a_namespace_cannot_be_changed(acme: Api) -> None:
    assert acme.post("/namespaces", {"name": "blue", "numShards": 4}).status_code == 201
    assert acme.post("/namespaces", {"name": "blue", "numShards": 4}).status_code == 200
    other = acme.post("/namespaces", {"name": "blue", "numShards": 8})
    assert (other.status_code, other.json()["code"]) == (409, "immutable")
    assert acme.get("/namespaces/blue").json()["numShards"] == 4
    assert acme.submit(namespace="blue")["namespace"] == "blue"


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"name": "-"}, "/name"),
        ({}, "/name"),
        ({"name": "b", "numShards": 0}, "/numShards"),
        ({"name": "b", "numShards": 4097}, "/numShards"),
        ({"name": "b", "numShards": 1.5}, "/numShards"),
        ({"name": "b", "size": "huge"}, "/size"),
        ({"name": "b", "size": 16}, "/size"),
        ({"name": "b", "size": "small", "numShards": 16}, "/numShards"),
    ],
)
def test_an_invalid_namespace_is_refused(acme: Api, body: Any, pointer: str) -> None:
    assert list(get_errors(acme.post("/namespaces", body))) == [pointer]


@pytest.mark.parametrize(
    ("size", "num_shards"), [("small", 16), ("medium", 256), ("large", 1024), ("xlarge", 4096)]
)
def test_the_size_of_a_namespace_has_a_name(acme: Api, size: str, num_shards: int) -> None:
    made = acme.post("/namespaces", {"name": "blue", "size": size})
    assert (made.status_code, made.json()["numShards"], made.json()["size"]) == (201, num_shards, size)
    assert acme.post("/namespaces", {"name": "blue", "numShards": num_shards}).status_code == 200
    other = acme.post("/namespaces", {"name": "blue", "size": "small" if size != "small" else "medium"})
    assert (other.status_code, other.json()["code"]) == (409, "immutable")
    listed = {one["name"]: one["size"] for one in acme.get("/namespaces").json()["items"]}
    assert listed == {"blue": size, "default": "small"}


def test_another_number_of_shards_has_no_name(acme: Api) -> None:
    assert acme.post("/namespaces", {"name": "blue", "numShards": 17}).json()["size"] is None


def test_a_size_and_a_number_are_not_given_together(acme: Api) -> None:
    refused = acme.post("/namespaces", {"name": "blue", "size": "large", "numShards": 1024})
    assert get_errors(refused) == {"/numShards": "must not be given together with size"}


def test_a_key_is_shown_once(acme: Api) -> None:
    made = acme.post("/api-keys", {"name": "ci", "scopes": ["read"], "expiresAt": "2090-01-01T00:00:00Z"})
    assert made.status_code == 201
    key = made.json()
    assert Api(acme.tenant, key["key"]).get("/service-calls").status_code == 200
    listed = acme.get("/api-keys")
    assert key["key"].rsplit("_", 1)[1].encode() not in listed.content
    assert key["keyId"] in {one["keyId"] for one in listed.json()["items"]}


def test_a_rotated_key_stays_valid_for_the_overlap(acme: Api) -> None:
    old = acme.post("/api-keys", {"scopes": ["read"]}).json()
    new = acme.post(f"/api-keys/{old['keyId']}/rotate", {"overlap": "1h"}).json()
    assert new["scopes"] == ["read"]

    def get_status(key: Any) -> int:
        clear_caches()
        return int(Api(acme.tenant, key["key"]).get("/service-calls").status_code)

    assert [get_status(old), get_status(new)] == [200, 200]
    with pin_time(db_now() + timedelta(hours=1, seconds=1)):
        assert [get_status(old), get_status(new)] == [401, 200]
        assert acme.post(f"/api-keys/{old['keyId']}/rotate").status_code == 409


def test_a_repeated_rotation_names_the_successor(acme: Api) -> None:
    old = acme.post("/api-keys", {"scopes": ["read"]}).json()
    new = acme.post(f"/api-keys/{old['keyId']}/rotate").json()
    again = acme.post(f"/api-keys/{old['keyId']}/rotate")
    assert (again.status_code, again.json()["code"]) == (409, "already_rotated")
    assert new["keyId"] in again.json()["detail"]
    shown = {key["keyId"]: key["successor"] for key in acme.get("/api-keys").json()["items"]}
    assert (shown[old["keyId"]], shown[new["keyId"]]) == (new["keyId"], None)


def test_a_revoked_key_is_refused_and_cannot_be_rotated(acme: Api) -> None:
    key = acme.post("/api-keys", {"scopes": ["read"]}).json()
    assert [acme.post(f"/api-keys/{key['keyId']}/revoke").status_code for _ in range(2)] == [204, 204]
    clear_caches()
    assert Api(acme.tenant, key["key"]).get("/service-calls").status_code == 401
    assert acme.post(f"/api-keys/{key['keyId']}/rotate").status_code == 409


def test_a_key_cannot_grant_scopes_that_it_does_not_have(acme: Api) -> None:
    poor = create_api(acme.tenant, ["admin", "read"])
    assert poor.post("/api-keys", {"scopes": ["write"]}).json()["code"] == "scope_missing"
    assert ApiKey.objects.for_tenant(acme.tenant.tenant_id).count() == 2


def test_a_key_with_more_scopes_cannot_be_rotated(acme: Api) -> None:
    rich = acme.post("/api-keys", {"scopes": ["read", "write", "admin"]}).json()
    poor = create_api(acme.tenant, ["admin"])
    assert poor.post(f"/api-keys/{rich['keyId']}/rotate").json()["code"] == "scope_missing"


@pytest.mark.parametrize("scopes", [None, [], ["all"], "read", [1], ["read"] * 4])
def test_a_key_has_one_to_three_scopes(acme: Api, scopes: Any) -> None:
    assert {pointer[:7] for pointer in get_errors(acme.post("/api-keys", {"scopes": scopes}))} == {"/scopes"}


@pytest.mark.parametrize("moment", ["2020-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z"])
def test_a_key_expires_in_the_future_and_within_its_maximum_lifetime(acme: Api, moment: str) -> None:
    body = {"scopes": ["read"], "expiresAt": moment}
    rule = "must be in the future, and within 36500 days from now"
    assert get_errors(acme.post("/api-keys", body)) == {"/expiresAt": rule}


@pytest.mark.parametrize("name", ["X-Pin:", "X Ssn", "**", "X-*", "X-é", "", "x" * 254, 7])
def test_an_impossible_header_name_cannot_be_secret(operator: Api, name: Any) -> None:
    wrong = get_errors(operator("PATCH", "", {"secretHeaders": ["X-Fine", name]}))
    assert list(wrong) == ["/secretHeaders/1"]


def test_a_secret_header_that_was_named_before_the_rule_does_no_harm(operator: Api) -> None:
    update_tenant(operator.tenant.tenant_id, secret_headers=["X-Plan:", "X_Ssn"])
    call = operator.submit(requestSpec={**SPEC, "headers": {"X-Ssn": "123-45-6789", "X-Plan": "gold"}})
    assert call["requestSpec"]["headers"] == {"X-Ssn": MASK, "X-Plan": "gold"}
    changed = operator("PATCH", "", {"maxPending": 7}).json()
    assert changed["secretHeaders"] == ["X-Plan:", "X_Ssn"]


def test_all_headers_of_a_tenant_can_be_secret(operator: Api) -> None:
    assert operator("PATCH", "", {"secretHeaders": ["*"]}).json()["secretHeaders"] == ["*"]
    given = {"X-Plan": "gold", "Content-Type": "text/plain"}
    call = operator.submit(requestSpec={**SPEC, "headers": given})
    assert call["requestSpec"]["headers"] == {"X-Plan": MASK, "Content-Type": "text/plain"}


@pytest.mark.parametrize("body", [{"name": "blue"}, {"name": "blue", "numShards": None}])
def test_an_existing_namespace_is_returned_if_no_shards_are_given(acme: Api, body: Any) -> None:
    assert acme.post("/namespaces", {"name": "blue", "numShards": 4}).status_code == 201
    again = acme.post("/namespaces", body)
    assert (again.status_code, again.json()["numShards"]) == (200, 4)
    assert acme.post("/namespaces", {**body, "name": "green"}).json()["numShards"] == 16

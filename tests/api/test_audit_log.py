"""Changes of tenants and keys through the API are in the audit log, as those through the console are."""

from __future__ import annotations

from typing import Any

import pytest

from eventservice.api import tenants
from eventservice.operators.models import OperatorAction
from eventservice.tenants.models import ApiKey, Tenant
from tests.api.conftest import Api

pytestmark = pytest.mark.django_db

SECRET = "whsec_" + "C4n4ry" * 6


def get_key_id(api: Api) -> str:
    return api.key.split("_")[2]


def take_entries() -> list[tuple[str, str, dict[str, Any]]]:
    """Return the entries of the audit log, and delete them."""
    rows = OperatorAction.across_tenants.order_by("id")
    entries = [(row.action, row.subject, row.detail) for row in rows]
    rows.delete()
    return entries


def test_the_actor_is_the_key(operator: Api) -> None:
    operator("PATCH", "", {"maxPending": 7})
    row = OperatorAction.objects.for_tenant(operator.tenant.tenant_id).get()
    assert (row.user, row.action) == (f"key:{get_key_id(operator)}", "tenant-change")


def test_creating_a_tenant_is_recorded(operator: Api) -> None:
    made = operator.post("/api/v1/tenants", {"name": "fresh", "signingSecret": SECRET}).json()
    assert take_entries() == [("tenant-create", made["tenantId"], {"name": "fresh"})]
    assert operator.post("/api/v1/tenants", {"name": "fresh"}).status_code == 409
    assert take_entries() == []


def test_each_change_of_a_tenant_has_an_action_of_its_own(operator: Api) -> None:
    one = str(operator.tenant.tenant_id)
    limits = {"maxPending": 7, "maxInFlight": 1000, "allowedHosts": ["a.test"]}
    operator("PATCH", "", {**limits, "active": False, "signingSecret": SECRET})
    assert sorted(take_entries()) == [
        ("tenant-change", one, {"max_pending": "1000000 → 7", "allowed_hosts": "none → a.test"}),
        ("tenant-deactivate", one, {}),
        ("tenant-secret-set", one, {}),
    ]
    operator("PATCH", "", {**limits, "active": True, "signingSecret": SECRET})
    assert sorted(take_entries()) == [("tenant-activate", one, {}), ("tenant-secret-rotate", one, {})]
    operator("PATCH", "", {"signingSecret": ""})
    assert take_entries() == [("tenant-secret-clear", one, {})]


def test_setting_the_same_values_records_nothing(operator: Api) -> None:
    assert (
        operator("PATCH", "", {"active": True, "signingSecret": "", "maxInFlight": 1000}).status_code == 200
    )
    assert operator("PATCH", "", {}).status_code == 200
    assert take_entries() == []


def test_a_namespace_is_made_once(acme: Api) -> None:
    for _ in range(2):
        acme.post("/namespaces", {"name": "blue", "numShards": 4})
    made = ("namespace-create", str(acme.tenant.tenant_id), {"name": "blue", "shards": 4})
    assert take_entries() == [made]


def test_the_life_of_a_key_is_recorded(acme: Api) -> None:
    key = acme.post("/api-keys", {"name": "ci", "scopes": ["read"]}).json()
    new = acme.post(f"/api-keys/{key['keyId']}/rotate", {"overlap": "1h"}).json()
    for _ in range(2):
        acme.post(f"/api-keys/{new['keyId']}/revoke")
    said = {"name": "ci", "scopes": ["read"], "expires": None}
    assert take_entries() == [
        ("key-create", key["keyId"], said),
        ("key-rotate", new["keyId"], {**said, "replaces": key["keyId"], "overlap": "1:00:00"}),
        ("key-revoke", new["keyId"], {"name": "ci"}),
    ]


def test_the_audit_log_contains_no_secret(operator: Api) -> None:
    operator("PATCH", "", {"signingSecret": SECRET})
    made = operator.post("/api-keys", {"scopes": ["read"]}).json()
    told = str(take_entries())
    for secret in (SECRET, made["key"].rpartition("_")[2], operator.key.rpartition("_")[2]):
        assert secret not in told


def test_an_action_that_cannot_be_recorded_is_not_done(
    operator: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError

    monkeypatch.setattr(tenants, "record_action", fail)
    keys = ApiKey.objects.for_tenant(operator.tenant.tenant_id)
    there = set(keys.values_list("pk", "revoked_at"))
    (key,) = keys
    asked: list[tuple[str, str, Any]] = [
        ("POST", "/api/v1/tenants", {"name": "fresh"}),
        ("PATCH", "", {"maxPending": 7}),
        ("POST", "/namespaces", {"name": "blue"}),
        ("POST", "/api-keys", {"scopes": ["read"]}),
        ("POST", f"/api-keys/{key.key_id}/rotate", None),
        ("POST", f"/api-keys/{key.key_id}/revoke", None),
    ]
    for method, path, body in asked:
        assert operator(method, path, body).status_code == 500, path
    monkeypatch.undo()
    assert set(keys.values_list("pk", "revoked_at")) == there
    assert list(Tenant.objects.values_list("name", "max_pending")) == [("acme", 1_000_000)]
    assert [one["name"] for one in operator.get("/namespaces").json()["items"]] == ["default"]

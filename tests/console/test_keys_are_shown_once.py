"""API keys of tenants and operators are created and shown once, rotated with an overlap, and revoked."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.contrib.sessions.models import Session
from django.test import Client

from eventservice.operators.models import OperatorAction
from eventservice.tenants.keys import create_key, find_key, revoke_key
from eventservice.tenants.models import ApiKey, Tenant

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]


def build_new_key_url(tenant: Tenant | None) -> str:
    return f"/tenants/{tenant.tenant_id}/keys/new/" if tenant else "/keys/new/"


def build_key_url(key: ApiKey, action: str) -> str:
    return (
        f"/tenants/{key.tenant_id}/keys/{key.key_id}/{action}/"
        if key.tenant_id
        else f"/keys/{key.key_id}/{action}/"
    )


def read_key(response: Any) -> str:
    match = re.search(r"es_dev_[a-z0-9]+_[a-z0-9]+", response.content.decode())
    assert match, "no key is shown"
    return match[0]


def list_audit_entries() -> list[OperatorAction]:
    return list(OperatorAction.across_tenants.order_by("id"))


def test_a_new_key_is_in_the_response_to_the_form_and_nowhere_else(admin: Client, tenant: Tenant) -> None:
    response = admin.post(build_new_key_url(tenant), {"name": "billing", "scopes": ["read", "write"]})
    text = read_key(response)
    key = find_key(text)
    assert key is not None
    assert (key.tenant_id, key.name, key.scopes, key.expires_at) == (
        tenant.tenant_id,
        "billing",
        ["read", "write"],
        None,
    )
    assert (response.status_code, response["Cache-Control"]) == (201, "no-store")
    secret = text.rpartition("_")[2]
    assert secret not in admin.get(f"/tenants/{tenant.tenant_id}/").content.decode()
    assert secret not in str([session.get_decoded() for session in Session.objects.all()])
    assert not any(secret in value for cookie in admin.cookies.values() for value in (cookie.value,))
    (note,) = list_audit_entries()
    assert (note.action, note.subject, note.tenant_id) == ("key-create", key.key_id, tenant.tenant_id)
    assert secret not in str(note.detail)


def test_a_key_can_expire(admin: Client, tenant: Tenant, at_noon: datetime) -> None:
    response = admin.post(build_new_key_url(tenant), {"scopes": ["read"], "expiresAt": "30d"})
    key = find_key(read_key(response))
    assert key is not None
    assert key.expires_at == at_noon + timedelta(days=30)


@pytest.mark.parametrize(
    ("data", "field"),
    [
        ({"name": "x"}, "scopes"),
        ({"scopes": ["read", "everything"]}, "scopes"),
        ({"scopes": ["read"], "name": "n" * 101}, "name"),
        ({"scopes": ["read"], "expiresAt": "2020-01-01T00:00:00Z"}, "expiresAt"),
        ({"scopes": ["read"], "expiresAt": "soon"}, "expiresAt"),
        ({"scopes": ["read"], "expiresAt": "9999-12-31T23:59:59.999999Z"}, "expiresAt"),
        ({"scopes": ["read"], "expiresAt": "999999999d"}, "expiresAt"),
    ],
)
def test_each_error_is_at_its_field(admin: Client, tenant: Tenant, data: dict[str, Any], field: str) -> None:
    response = admin.post(build_new_key_url(tenant), data)
    assert response.status_code == 400
    form = response.context["form"]
    assert {form[name].html_name for name in form.errors} == {field}
    assert not ApiKey.across_tenants.exists()
    assert list_audit_entries() == []


def test_rotating_shows_the_successor_and_the_old_key_expires_after_the_overlap(
    admin: Client, tenant: Tenant, at_noon: datetime
) -> None:
    key, old = create_key(tenant.tenant_id, ["read"], name="billing")
    assert "Keep the old key valid for" in admin.get(build_key_url(key, "rotate")).content.decode()
    response = admin.post(build_key_url(key, "rotate"), {"overlap": "1h"})
    new = find_key(read_key(response))
    assert new is not None
    assert (new.tenant_id, new.scopes, new.name) == (tenant.tenant_id, ["read"], "billing")
    assert response["Cache-Control"] == "no-store"
    key.refresh_from_db()
    assert key.expires_at == at_noon + timedelta(hours=1)
    assert find_key(old)
    (note,) = list_audit_entries()
    assert (note.action, note.subject, note.detail["replaces"]) == ("key-rotate", new.key_id, key.key_id)


@pytest.mark.parametrize("ended", ["revoked", "expired"])
def test_an_expired_or_revoked_key_cannot_be_rotated(
    admin: Client, tenant: Tenant, at_noon: datetime, ended: str
) -> None:
    key, _ = create_key(tenant.tenant_id, ["read"], expires_at=at_noon if ended == "expired" else None)
    if ended == "revoked":
        revoke_key(key.key_id)
    response = admin.post(build_key_url(key, "rotate"), {"overlap": "1h"}, follow=True)
    assert f"This key has {'been revoked' if ended == 'revoked' else 'expired'}" in response.content.decode()
    assert ApiKey.across_tenants.count() == 1
    assert list_audit_entries() == []


def test_revoking_is_confirmed_and_ends_the_key(admin: Client, tenant: Tenant) -> None:
    key, text = create_key(tenant.tenant_id, ["read"], name="billing")
    asked = admin.get(build_key_url(key, "revoke")).content.decode()
    assert "It has never been used" in asked
    assert find_key(text)
    response = admin.post(build_key_url(key, "revoke"))
    assert response["Location"].startswith(f"/tenants/{tenant.tenant_id}/")
    assert find_key(text) is None
    again = admin.post(build_key_url(key, "revoke"), follow=True)
    assert "has already been revoked" in again.content.decode()
    assert [note.action for note in list_audit_entries()] == ["key-revoke"]


def test_the_state_of_each_key_is_shown(viewer: Client, tenant: Tenant, at_noon: datetime) -> None:
    create_key(tenant.tenant_id, ["read"], name="plain")
    create_key(tenant.tenant_id, ["read"], name="ending", expires_at=at_noon + timedelta(days=1))
    create_key(tenant.tenant_id, ["read"], name="over", expires_at=at_noon - timedelta(days=1))
    revoke_key(create_key(tenant.tenant_id, ["read"], name="gone")[0].key_id)
    keys = viewer.get(f"/tenants/{tenant.tenant_id}/").context["keys"]
    assert {key.name: str(state) for key, state, _ in keys} == {
        "plain": "active", "ending": "ending", "over": "expired", "gone": "revoked",
    }  # fmt: skip
    assert [str(state) for _, state, _ in keys][2:] != ["active", "ending"]


# --- the operators' own -----------------------------------------------------------------------------------------


def test_operator_keys_belong_to_no_tenant(admin: Client, tenant: Tenant) -> None:
    response = admin.post(build_new_key_url(None), {"name": "monitoring", "scopes": ["read"]})
    key = find_key(read_key(response))
    assert key is not None
    assert key.tenant_id is None
    assert "monitoring" in admin.get("/keys/").content.decode()
    assert "monitoring" not in admin.get(f"/tenants/{tenant.tenant_id}/").content.decode()


def test_an_operator_key_is_rotated_and_revoked_at_its_own_url_only(admin: Client, tenant: Tenant) -> None:
    key, text = create_key(None, ["read"])
    foreign = f"/tenants/{tenant.tenant_id}/keys/{key.key_id}"
    assert admin.post(f"{foreign}/rotate/", {"overlap": "0s"}).status_code == 404
    assert admin.post(f"{foreign}/revoke/").status_code == 404
    assert find_key(text)
    assert read_key(admin.post(build_key_url(key, "rotate"), {"overlap": "1h"}))
    admin.post(build_key_url(key, "revoke"))
    assert find_key(text) is None


def test_a_key_is_found_under_its_own_tenant_only(admin: Client, tenant: Tenant, intruder: Tenant) -> None:
    key, text = create_key(tenant.tenant_id, ["read"])
    for address in (f"/tenants/{intruder.tenant_id}/keys/{key.key_id}", f"/keys/{key.key_id}"):
        assert admin.get(f"{address}/revoke/").status_code == 404
        assert admin.post(f"{address}/revoke/").status_code == 404
        assert admin.post(f"{address}/rotate/", {"overlap": "1h"}).status_code == 404
    assert find_key(text)


@pytest.mark.parametrize("who", ["viewer", "operator", "outsider"])
def test_only_admins_create_rotate_and_revoke_keys(
    who: str, tenant: Tenant, request: pytest.FixtureRequest
) -> None:
    client: Client = request.getfixturevalue(who)
    keys = [create_key(tenant.tenant_id, ["read"]), create_key(None, ["read"])]
    paths = [build_new_key_url(tenant), build_new_key_url(None)]
    paths += [build_key_url(key, action) for key, _ in keys for action in ("rotate", "revoke")]
    for address in paths:
        for method in (client.get, client.post):
            sent = method(address, {"scopes": "read", "overlap": "0s"})
            assert sent.status_code == (302 if who == "outsider" else 403), address
    assert all(find_key(text) for _, text in keys)
    assert ApiKey.across_tenants.count() == 2
    assert list_audit_entries() == []


def test_a_key_that_depends_on_a_replaced_secret_key_is_marked(
    viewer: Client, tenant: Tenant, settings: Any
) -> None:
    addresses = (f"/tenants/{tenant.tenant_id}/", "/keys/")
    for owner in (tenant.tenant_id, None):
        create_key(owner, ["read"])
    assert all("SECRET_KEY" not in viewer.get(address).content.decode() for address in addresses)
    settings.SECRET_KEY_FALLBACKS = [settings.SECRET_KEY]
    settings.SECRET_KEY = "new"
    # The session was signed with the former SECRET_KEY, which is still listed.
    for address in addresses:
        assert viewer.get(address).content.decode().count("SECRET_KEY fallback") == 1

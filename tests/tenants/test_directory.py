"""A tenant's profile is cached for seconds and never mixed up with another's; tenants and namespaces are validated."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction

from eventservice.kernel.errors import Conflict, Invalid, NotFound
from eventservice.kernel.ids import new_id
from eventservice.kernel.secrets import decrypt, encrypt
from eventservice.kernel.ttl_cache import clear_caches
from eventservice.tenants import directory
from eventservice.tenants.directory import (
    TenantIds,
    create_tenant,
    declare_namespace,
    get_max_shards,
    get_profile,
    update_tenant,
)
from eventservice.tenants.models import DEFAULT_SHARDS, Namespace, Tenant
from tests.factories import NamespaceFactory, TenantFactory

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]


def change(tenant: Tenant, **values: Any) -> None:
    """Change a tenant as another process does: the profiles of this one do not know."""
    Tenant.objects.filter(pk=tenant.pk).update(**values)


def test_a_new_tenant_has_its_default_namespace() -> None:
    tenant = create_tenant("acme")
    assert get_profile(tenant.tenant_id).num_shards == {"default": DEFAULT_SHARDS}
    assert (get_profile(tenant.tenant_id).name, get_profile(tenant.tenant_id).active) == ("acme", True)


def test_ids_are_read_again_when_the_number_of_tenants_has_changed(django_assert_num_queries: Any) -> None:
    ours = TenantFactory().tenant_id
    list_ids = TenantIds()
    known = list_ids()
    assert known == (ours,)
    with django_assert_num_queries(1) as counted:
        assert list_ids() is known
    assert "COUNT" in counted[0]["sql"]
    theirs = TenantFactory().tenant_id
    assert set(list_ids()) == {ours, theirs}


def test_ids_are_read_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = TenantFactory()
    list_ids = TenantIds()
    assert list_ids() == (gone.tenant_id,)
    gone.delete()
    kept = TenantFactory().tenant_id
    monkeypatch.setattr(directory, "CACHE_SECONDS", 0.0)
    assert list_ids() == (kept,)


@pytest.mark.parametrize("name", ["", "Acme", "a b", "-a", "a" * 65, "ü"])
def test_an_invalid_name_creates_no_tenant(name: str) -> None:
    with pytest.raises(ValidationError):
        create_tenant(name)
    assert not Tenant.objects.exists()


def test_names_are_unique() -> None:
    create_tenant("acme")
    with pytest.raises(IntegrityError), transaction.atomic():
        create_tenant("acme")
    assert Tenant.objects.count() == 1


def test_a_profile_is_ready_for_use() -> None:
    tenant = TenantFactory(
        signing_secret=encrypt("whsec_x"),
        secret_headers=["X-Session"],
        allowed_hosts=["Fine.TEST"],
        max_in_flight=7,
    )
    known = get_profile(tenant.tenant_id)
    assert (decrypt(known.signing_secret), known.max_in_flight) == ("whsec_x", 7)
    assert known.secret_headers == {"x-session"}
    assert known.allowed_hosts == {"fine.test"}
    assert get_profile(TenantFactory().tenant_id).signing_secret == ""


def test_an_unknown_tenant_is_not_found() -> None:
    with pytest.raises(NotFound):
        get_profile(new_id())


def test_a_profile_is_read_once(django_assert_num_queries: Any) -> None:
    tenant = create_tenant("acme")
    get_profile(tenant.tenant_id)
    with django_assert_num_queries(0):
        assert get_profile(tenant.tenant_id).name == "acme"


def test_a_change_is_seen_at_once_in_its_process_and_the_secret_is_stored_encrypted() -> None:
    tenant = create_tenant("acme", max_pending=5)
    assert get_profile(tenant.tenant_id).max_pending == 5
    changed = update_tenant(tenant.tenant_id, max_in_flight=3, signing_secret="whsec_x")
    assert "whsec_x" not in changed.signing_secret
    known = get_profile(tenant.tenant_id)
    assert (known.max_in_flight, known.max_pending, decrypt(known.signing_secret)) == (3, 5, "whsec_x")
    assert get_profile(update_tenant(tenant.tenant_id, signing_secret="").tenant_id).signing_secret == ""
    with pytest.raises(NotFound):
        update_tenant(new_id(), max_in_flight=3)


def test_a_change_is_seen_when_the_cache_is_cleared() -> None:
    tenant = create_tenant("acme")
    get_profile(tenant.tenant_id)
    change(tenant, max_in_flight=3)
    assert get_profile(tenant.tenant_id).max_in_flight == 1000
    clear_caches()
    assert get_profile(tenant.tenant_id).max_in_flight == 3


def test_a_change_is_seen_when_the_profile_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    tenant = create_tenant("acme")
    get_profile(tenant.tenant_id)
    change(tenant, active=False)
    monkeypatch.setattr(directory._profiles, "_seconds", 0.0)
    assert not get_profile(tenant.tenant_id).active


def test_each_namespace_has_its_own_shards_and_each_tenant_its_own_namespaces() -> None:
    ours, theirs = create_tenant("acme"), create_tenant("intruder")
    declare_namespace(ours.tenant_id, "orders", 64)
    assert get_profile(ours.tenant_id).get_num_shards("orders") == 64
    assert get_profile(ours.tenant_id).get_num_shards("default") == DEFAULT_SHARDS
    with pytest.raises(Invalid) as refused:
        get_profile(theirs.tenant_id).get_num_shards("orders")
    assert (refused.value.code, list(refused.value.errors)) == ("unknown_namespace", ["namespace"])


def test_a_namespace_that_another_process_has_declared_is_found_at_once() -> None:
    tenant = create_tenant("acme")
    get_profile(tenant.tenant_id)
    NamespaceFactory(tenant=tenant, name="orders", num_shards=8)
    assert get_profile(tenant.tenant_id).get_num_shards("orders") == 8


def test_a_profile_has_the_timer_stores_of_namespaces() -> None:
    tenant = create_tenant("acme")
    NamespaceFactory(tenant=tenant, name="orders", store="fleet")
    profile = get_profile(tenant.tenant_id)
    assert (profile.get_store("orders"), profile.get_store("default")) == ("fleet", None)
    NamespaceFactory(tenant=tenant, name="later", store="fleet")
    assert profile.get_store("later") == "fleet"
    with pytest.raises(Invalid, match="does not exist"):
        profile.get_store("nothing")


def test_declaring_a_namespace_again_returns_it_unchanged() -> None:
    tenant = create_tenant("acme")
    first, is_new = declare_namespace(tenant.tenant_id, "orders", 8)
    assert is_new
    assert declare_namespace(tenant.tenant_id, "orders", 8) == (first, False)
    with pytest.raises(Conflict):
        declare_namespace(tenant.tenant_id, "orders", 9)
    assert Namespace.objects.for_tenant(tenant.tenant_id).get(name="orders").num_shards == 8


@pytest.mark.parametrize(("name", "num_shards"), [("Orders", 8), ("orders", 0), ("orders", 4097)])
def test_an_invalid_namespace_is_not_declared(name: str, num_shards: int) -> None:
    tenant = create_tenant("acme")
    with pytest.raises(ValidationError):
        declare_namespace(tenant.tenant_id, name, num_shards)
    assert Namespace.objects.for_tenant(tenant.tenant_id).count() == 1


def test_the_largest_namespace_decides_the_number_of_shards() -> None:
    assert get_max_shards() == DEFAULT_SHARDS
    tenant = create_tenant("acme")
    declare_namespace(tenant.tenant_id, "large", 128)
    declare_namespace(tenant.tenant_id, "small", 2)
    assert get_max_shards() == 128

"""A change of a tenant's settings moves the declarations of its namespaces on, if this cell agreed with them before."""

from __future__ import annotations

from typing import Any

import pytest

from eventservice.kernel.secrets import encrypt
from eventservice.tenants.directory import read_profile
from eventservice.tenants.models import Tenant
from orchestration.feeder.declarations import compare_namespaces, update_tenant
from orchestration.feeder.fingerprints import build_fingerprint
from orchestration.feeder.namespaces import declare_namespace
from tests.contracts.timer_stores.memory_fleet import FLEET, MemoryFleet
from timers.stores.port import NamespaceDeclaration, QualifiedNamespace

pytestmark = pytest.mark.django_db

SECRET = "whsec_" + 32 * "A"
OTHER_CELL = "other cell"


def declare(tenant: Tenant, name: str = "alerts") -> QualifiedNamespace:
    declare_namespace(tenant.pk, name, 4, "fleet", record=lambda namespace: None)
    return QualifiedNamespace(tenant.pk, name)


@pytest.fixture
def change(tenant: Tenant, django_capture_on_commit_callbacks: Any) -> Any:
    def change(**settings: Any) -> None:
        with django_capture_on_commit_callbacks(execute=True):
            update_tenant(tenant.pk, **settings)

    return change


@pytest.mark.parametrize("settings", [{"allowed_hosts": ["example.com"]}, {"signing_secret": SECRET}])
def test_the_declaration_follows_the_cell_that_agreed_with_it(
    tenant: Tenant, fleet: MemoryFleet, change: Any, settings: dict[str, Any]
) -> None:
    namespaces = {declare(tenant), declare(tenant, "orders")}
    change(**settings)
    fingerprint = build_fingerprint(read_profile(tenant.pk))
    for namespace in namespaces:
        assert fleet.tables.namespaces[namespace] == NamespaceDeclaration(namespace, 4, fingerprint, 2)
    assert not any(one.problem for one in compare_namespaces("fleet", fleet.build_store(FLEET, "-")))


def test_what_another_cell_has_changed_before_stays_as_it_is(
    tenant: Tenant, fleet: MemoryFleet, change: Any
) -> None:
    namespace = declare(tenant)
    before = fleet.tables.namespaces[namespace]
    change(allowed_hosts=["example.com"])
    moved = fleet.tables.namespaces[namespace]
    # The other cell, in which the change is made after this one.
    Tenant.objects.update(allowed_hosts=[])
    change(allowed_hosts=["example.com"])
    assert fleet.tables.namespaces[namespace] == moved
    assert moved.fingerprint != before.fingerprint


def test_a_cell_that_differs_already_changes_no_declaration(
    tenant: Tenant, fleet: MemoryFleet, change: Any
) -> None:
    namespace = declare(tenant)
    other = fleet.build_store(FLEET, OTHER_CELL)
    assert other.change_fingerprint(fleet.tables.namespaces[namespace], {"allowedHosts": "theirs"})
    change(allowed_hosts=["example.com"])
    assert fleet.tables.namespaces[namespace].fingerprint == {"allowedHosts": "theirs"}


def test_a_change_of_an_unreadable_secret_changes_no_declaration(
    tenant: Tenant, fleet: MemoryFleet, change: Any
) -> None:
    namespace = declare(tenant)
    before = fleet.tables.namespaces[namespace]
    Tenant.objects.update(signing_secret="enc:v1:unreadable")
    change(signing_secret=SECRET)
    assert fleet.tables.namespaces[namespace] == before


def test_other_settings_are_not_declared(tenant: Tenant, fleet: MemoryFleet, change: Any) -> None:
    namespace = declare(tenant)
    change(max_pending=7)
    assert fleet.tables.namespaces[namespace].version == 1


def test_settings_are_changed_while_the_store_is_unavailable(
    tenant: Tenant, fleet: MemoryFleet, change: Any
) -> None:
    namespace = declare(tenant)
    fleet.is_available = False
    change(allowed_hosts=["example.com"])
    fleet.is_available = True
    assert read_profile(tenant.pk).allowed_hosts == {"example.com"}
    assert fleet.tables.namespaces[namespace].version == 1
    (found,) = compare_namespaces("fleet", fleet.build_store(FLEET, "-"))
    assert found.differing_groups == ["allowed hosts"]


def test_a_secret_that_is_encrypted_again_is_the_same(tenant: Tenant, fleet: MemoryFleet) -> None:
    Tenant.objects.update(signing_secret=encrypt(SECRET))
    namespace = declare(tenant)
    Tenant.objects.update(signing_secret=encrypt(SECRET))
    assert build_fingerprint(read_profile(tenant.pk)) == fleet.tables.namespaces[namespace].fingerprint

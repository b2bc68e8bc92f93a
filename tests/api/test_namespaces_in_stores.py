"""A namespace may keep its pending timers in a timer store, which is chosen when the namespace is created."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import IntegrityError
from django.test import override_settings

from eventservice.operators.models import OperatorAction
from eventservice.tenants import directory
from eventservice.tenants.directory import get_profile
from eventservice.tenants.models import Namespace
from orchestration.feeder.fingerprints import build_fingerprint
from tests.api.conftest import Api, get_errors
from tests.contracts.timer_stores import STORES
from tests.contracts.timer_stores.memory_fleet import FLEET, MemoryFleet
from timers.cell_stores import get_cell_store
from timers.stores.port import (
    MAX_STORED_NAMESPACE_LENGTH,
    NamespaceDeclaration,
    OutcomeUnknown,
    QualifiedNamespace,
)

pytestmark = pytest.mark.django_db

IN_FLEET = {"name": "alerts", "numShards": 4, "store": "fleet"}


def find_declaration(fleet: MemoryFleet, api: Api, name: str = "alerts") -> NamespaceDeclaration | None:
    return fleet.tables.namespaces.get(QualifiedNamespace(api.tenant.tenant_id, name))


def list_names(api: Api) -> list[str]:
    return [one["name"] for one in api.get("/namespaces").json()["items"]]


def test_a_namespace_in_a_store_is_declared_in_the_store_and_created(acme: Api, fleet: MemoryFleet) -> None:
    made = acme.post("/namespaces", IN_FLEET)
    assert (made.status_code, made.json()["store"], made.json()["numShards"]) == (201, "fleet", 4)
    profile = get_profile(acme.tenant.tenant_id)
    assert profile.get_store("alerts") == "fleet"
    declared = find_declaration(fleet, acme)
    assert declared is not None
    assert (declared.num_shards, declared.fingerprint) == (4, build_fingerprint(profile))
    assert acme.get("/namespaces/alerts").json()["store"] == "fleet"
    assert acme.get("/namespaces/default").json()["store"] is None
    (action,) = OperatorAction.across_tenants.filter(action="namespace-create")
    assert action.detail == {"name": "alerts", "shards": 4, "store": "fleet"}


@pytest.mark.parametrize("body", [IN_FLEET, {"name": "alerts", "store": "fleet"}, {"name": "alerts"}])
def test_a_repeat_changes_nothing_and_needs_no_store(acme: Api, fleet: MemoryFleet, body: Any) -> None:
    acme.post("/namespaces", IN_FLEET)
    fleet.is_available = False
    again = acme.post("/namespaces", body)
    assert (again.status_code, again.json()["store"]) == (200, "fleet")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (IN_FLEET, {**IN_FLEET, "store": "away"}),
        ({"name": "alerts"}, {"name": "alerts", "store": "fleet"}),
        (IN_FLEET, {**IN_FLEET, "numShards": 8}),
    ],
)
def test_the_store_of_a_namespace_cannot_be_changed(
    acme: Api, fleet: MemoryFleet, first: Any, second: Any
) -> None:
    made = acme.post("/namespaces", first).json()
    refused = acme.post("/namespaces", second)
    assert (refused.status_code, refused.json()["code"]) == (409, "immutable")
    assert acme.get("/namespaces/alerts").json() == made


@pytest.mark.parametrize("store", ["fleets", "", "Fleet"])
def test_an_unknown_store_is_refused_with_those_that_exist(acme: Api, fleet: MemoryFleet, store: str) -> None:
    refused = acme.post("/namespaces", {**IN_FLEET, "store": store})
    assert get_errors(refused) == {"/store": "must be one of fleet, away"}
    assert list_names(acme) == ["default"]
    with override_settings(TIMER_STORES=[]):
        refused = acme.post("/namespaces", IN_FLEET)
    assert get_errors(refused) == {"/store": "must be left out, because TIMER_STORES has no stores"}


def test_a_name_that_is_too_long_for_a_store_is_refused(acme: Api, fleet: MemoryFleet) -> None:
    longest = "n" * MAX_STORED_NAMESPACE_LENGTH
    assert list(get_errors(acme.post("/namespaces", {**IN_FLEET, "name": f"{longest}n"}))) == ["/name"]
    assert acme.post("/namespaces", {**IN_FLEET, "name": longest}).status_code == 201
    assert acme.post("/namespaces", {"name": f"{longest}n"}).status_code == 201


def test_another_number_of_shards_in_the_store_is_refused(acme: Api, fleet: MemoryFleet) -> None:
    namespace = QualifiedNamespace(acme.tenant.tenant_id, "alerts")
    fleet.build_store(FLEET, "another cell").declare_namespace(namespace, 64, {})
    refused = acme.post("/namespaces", IN_FLEET)
    assert (refused.status_code, refused.json()["code"]) == (409, "immutable")
    assert "fixed at 64" in refused.json()["detail"]
    assert list_names(acme) == ["default"]


def test_without_a_number_a_namespace_has_the_shards_that_another_cell_has_declared(
    acme: Api, fleet: MemoryFleet
) -> None:
    namespace = QualifiedNamespace(acme.tenant.tenant_id, "alerts")
    fleet.build_store(FLEET, "another cell").declare_namespace(namespace, 64, {})
    assert acme.post("/namespaces", {"name": "alerts", "store": "fleet"}).json()["numShards"] == 64


def test_equal_names_of_two_tenants_are_different_namespaces(
    acme: Api, intruder: Api, fleet: MemoryFleet
) -> None:
    assert acme.post("/namespaces", IN_FLEET).status_code == 201
    assert intruder.post("/namespaces", {**IN_FLEET, "numShards": 8}).status_code == 201
    assert {one.num_shards for one in fleet.tables.namespaces.values()} == {4, 8}
    assert intruder.get("/namespaces/alerts").json()["numShards"] == 8


def test_a_store_that_cannot_be_reached_is_named_as_the_reason(acme: Api, fleet: MemoryFleet) -> None:
    refused = acme.post("/namespaces", {**IN_FLEET, "store": "away"})
    assert (refused.status_code, refused.json()["code"]) == (503, "store_unavailable")
    assert refused["Retry-After"]
    assert "s3cret" not in refused.content.decode()
    assert list_names(acme) == ["default"]


def test_a_declaration_without_an_answer_can_be_repeated(
    acme: Api, fleet: MemoryFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = get_cell_store("fleet")
    declare = store.declare_namespace

    def declare_without_answer(*args: Any) -> NamespaceDeclaration:
        declare(*args)
        raise OutcomeUnknown("fleet: the connection was lost")

    with monkeypatch.context() as patched:
        patched.setattr(store, "declare_namespace", declare_without_answer)
        assert acme.post("/namespaces", IN_FLEET).json()["code"] == "store_unavailable"
    assert acme.post("/namespaces", IN_FLEET).status_code == 201


def test_what_a_crash_between_store_and_database_leaves_is_completed_by_a_repeat(
    acme: Api, fleet: MemoryFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*args: Any) -> None:
        raise IntegrityError

    with monkeypatch.context() as patched:
        patched.setattr(directory, "declare_namespace", crash)
        assert acme.post("/namespaces", IN_FLEET).status_code == 500
    assert find_declaration(fleet, acme) is not None
    assert list_names(acme) == ["default"]
    assert acme.post("/namespaces", IN_FLEET).status_code == 201


# --- on a real server -------------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
@pytest.mark.sqlite_only
def test_a_namespace_is_declared_on_a_server_that_is_set_up(acme: Api) -> None:
    server = STORES["postgres"]()
    try:
        with override_settings(TIMER_STORES=[server.spec]):
            get_cell_store.cache_clear()
            missing = acme.post("/namespaces", {"name": "alerts", "store": "postgres"})
            assert (missing.status_code, missing.json()["code"]) == (503, "store_unavailable")
            assert "`manage.py timer_store migrate postgres`" in missing.json()["detail"]
            assert not Namespace.objects.for_tenant(acme.tenant.tenant_id).filter(name="alerts").exists()
            store = server.build()
            store.migrate()
            made = acme.post("/namespaces", {"name": "alerts", "store": "postgres"})
            assert made.status_code == 201
            (declared,) = store.namespaces()
            assert declared.namespace == QualifiedNamespace(acme.tenant.tenant_id, "alerts")
            get_cell_store("postgres").close()
    finally:
        get_cell_store.cache_clear()
        server.close_built()
        server.close()

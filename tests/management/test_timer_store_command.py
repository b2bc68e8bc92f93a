"""`manage.py timer_store` sets up a store and shows what is in it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from io import StringIO

import pytest
import sqlalchemy
from django.conf import settings
from django.core.management import CommandError, call_command
from django.test import override_settings

from eventservice.db.now import db_now
from eventservice.kernel.findings import Finding, Severity
from eventservice.kernel.ids import new_id
from eventservice.kernel.secrets import encrypt
from eventservice.kernel.ttl_cache import clear_caches
from eventservice.management.commands.doctor import examine
from eventservice.operators.models import OperatorAction
from eventservice.tenants.models import Tenant
from orchestration.feeder.namespaces import declare_namespace
from tests.contracts.timer_stores import STORES
from tests.contracts.timer_stores.base import ALERTS, StoreUnderTest, build_timer
from tests.contracts.timer_stores.memory_fleet import FLEET, UNREACHABLE, MemoryFleet
from tests.contracts.timer_stores.sql import SqlStoreUnderTest
from tests.factories import ServiceCallFactory
from timers.cell import get_cell_id
from timers.models import Node, NodeRole
from timers.stores.port import Member, round_up

# Not within a transaction, in which the database's time stands still and is compared with the store's.
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.sqlite_only]


@pytest.fixture(scope="module")
def server() -> Iterator[StoreUnderTest]:
    server = STORES["postgres"]()
    yield server
    server.close()


@pytest.fixture
def stores(server: StoreUnderTest) -> Iterator[StoreUnderTest]:
    assert server.spec is not None
    with override_settings(TIMER_STORES=[replace(server.spec, name="main"), UNREACHABLE]):
        yield server
        server.close_built()


def run(*arguments: str) -> str:
    out = StringIO()
    call_command("timer_store", *arguments, stdout=out)
    return out.getvalue()


def test_a_store_is_migrated_checked_and_shown(stores: StoreUnderTest) -> None:
    with pytest.raises(SystemExit) as raised:
        run("check", "main")
    assert raised.value.code == 1
    assert "The timer store main has its table" in run("migrate", "main")
    run("migrate", "main")
    findings = json.loads(run("check", "main", "--json"))
    assert {finding["severity"] for finding in findings} == {"ok"}
    assert {finding["code"] for finding in findings} == {
        "timer_store_server",
        "timer_store_table",
        "timer_store_clock",
        "timer_store_namespaces",
    }
    assert "No shard has been claimed" in run("status", "main")

    store = stores.build()
    now = round_up(db_now())
    store.declare_namespace(ALERTS, 16, {})
    (only_there,) = json.loads(run("status", "main", "--json"))["namespaces"]
    assert only_there == {
        "namespace": str(ALERTS),
        "numShards": 16,
        "problem": "no namespace of this cell",
    }
    process = {"hostname": "engine-1", "processId": "7"}
    assert store.beat(Member(new_id(), 1, {**process, "cell": str(get_cell_id())}))
    assert store.beat(Member(new_id(), 1, {**process, "cell": "other-cell"}))
    timer = build_timer(execute_at=now - timedelta(hours=1))
    store.put(timer, None, now)
    assert store.claim(store.shards([timer.key.shard])[0], "engine-1", process)
    status = json.loads(run("status", "main", "--json"))
    assert [member["hostname"] for member in status["processes"]] == ["engine-1", "engine-1"]
    shard = status["shards"][timer.key.shard]
    assert (shard["owner"], shard["version"], shard["timers"], shard["overdue"]) == ("engine-1", 1, 1, 1)
    shown = run("status", "main")
    for text in ("engine-1 (process 7)", "this cell", "other-cell"):
        assert text in shown


def test_the_status_of_an_incomplete_store_says_what_is_missing(stores: StoreUnderTest) -> None:
    assert isinstance(stores, SqlStoreUnderTest)
    run("migrate", "main")
    with stores.engine.connect() as connection:
        connection.execute(sqlalchemy.text("DROP FUNCTION take_timers"))
    errors = StringIO()
    call_command("timer_store", "status", "main", stdout=StringIO(), stderr=errors)
    assert "there is no function take_timers" in errors.getvalue()
    assert "timer_store migrate main" in errors.getvalue()


def test_a_store_that_cannot_be_reached_is_named_and_its_password_is_not_shown(
    stores: StoreUnderTest,
) -> None:
    for action in ("migrate", "status"):
        with pytest.raises(CommandError, match=r"^away: ") as raised:
            run(action, "away")
        assert "s3cret" not in str(raised.value)
    out = StringIO()
    with pytest.raises(SystemExit):
        call_command("timer_store", "check", "away", stdout=out)
    assert "error" in out.getvalue()
    assert "s3cret" not in out.getvalue()


def test_a_name_that_is_not_configured_is_refused_with_those_that_are(stores: StoreUnderTest) -> None:
    with pytest.raises(CommandError, match=r"no store 'other'. It has: main, away"):
        run("status", "other")


def test_doctor_reports_every_store_by_name(stores: StoreUnderTest) -> None:
    found = [finding for finding in examine() if finding.code.startswith("timer_store")]
    assert any(finding.text.startswith("main: ") for finding in found)
    (away,) = [finding for finding in found if finding.text.startswith("away: ")]
    assert not away.is_ok
    assert "TIMER_STORES" in away.remedy


# --- namespaces and the cell, with a store in memory ------------------------------------------------------------


def list_problems(tenant: Tenant) -> dict[str, str]:
    """Return what is wrong with the namespaces of this cell, by their names."""
    shown = json.loads(run("status", "fleet", "--json"))["namespaces"]
    return {one["namespace"].partition("/")[2]: one["problem"] for one in shown}


def find_namespace_findings() -> list[Finding]:
    return [finding for finding in examine() if finding.code == "timer_store_namespaces"]


def declare_in_fleet(tenant: Tenant, name: str) -> None:
    declare_namespace(tenant.tenant_id, name, 4, "fleet", record=lambda namespace: None)


def test_other_settings_than_declared_are_reported_until_they_are_declared(
    tenant: Tenant, fleet: MemoryFleet
) -> None:
    declare_in_fleet(tenant, "alerts")
    declare_in_fleet(tenant, "orders")
    assert list_problems(tenant) == {"alerts": None, "orders": None}
    assert [finding.severity for finding in find_namespace_findings()] == [Severity.OK]
    Tenant.objects.update(allowed_hosts=["example.com"], signing_secret=encrypt("whsec_" + 32 * "A"))
    clear_caches()
    with override_settings(EGRESS_ALLOW_PRIVATE=not settings.EGRESS_ALLOW_PRIVATE):
        assert list_problems(tenant)["alerts"] == (
            "other settings here than declared: allowed hosts, egress rules (EGRESS_ALLOW, EGRESS_ALLOW_PRIVATE),"
            " signing secret"
        )
    for finding in find_namespace_findings():
        assert finding.severity is Severity.ERROR
        assert "settings here than declared: allowed hosts, signing secret" in finding.text
        assert "timer_store declare fleet" in finding.remedy
    with pytest.raises(SystemExit):
        run("check", "fleet")
    assert "acme/orders: declared" in run("declare", "fleet", "--namespace", "acme/orders")
    assert list_problems(tenant)["orders"] is None
    assert "acme/alerts: declared" in run("declare", "fleet")
    assert list_problems(tenant) == {"alerts": None, "orders": None}
    assert "everything as it is here" in run("declare", "fleet")
    first, second = OperatorAction.across_tenants.filter(action="timer-store-declare").order_by("id")
    assert (first.subject, first.detail) == ("fleet", {"namespaces": ["acme/orders"]})
    assert second.detail == {"namespaces": ["acme/alerts"]}


def test_what_a_new_table_does_not_know_is_declared_again(tenant: Tenant, fleet: MemoryFleet) -> None:
    declare_in_fleet(tenant, "alerts")
    declared = dict(fleet.tables.namespaces)
    fleet.tables.namespaces.clear()
    assert list_problems(tenant) == {"alerts": "not declared in the store"}
    run("declare", "fleet")
    assert fleet.tables.namespaces == declared


def test_another_number_of_shards_and_an_unreadable_secret_cannot_be_declared(
    tenant: Tenant, fleet: MemoryFleet
) -> None:
    declare_in_fleet(tenant, "alerts")
    ((namespace, declared),) = fleet.tables.namespaces.items()
    fleet.tables.namespaces[namespace] = declared._replace(num_shards=8)
    with pytest.raises(CommandError, match="acme/alerts: 4 shards here, and 8 in the store"):
        run("declare", "fleet")
    fleet.tables.namespaces[namespace] = declared
    Tenant.objects.update(signing_secret="enc:v1:unreadable")
    clear_caches()
    with pytest.raises(
        CommandError, match="acme/alerts: its tenant's signing secret cannot be decrypted here"
    ):
        run("declare", "fleet")
    assert fleet.tables.namespaces == {namespace: declared}


@pytest.mark.parametrize("namespace", ["alerts", "acme/default", "acme/other"])
def test_only_namespaces_in_the_store_are_declared(
    tenant: Tenant, fleet: MemoryFleet, namespace: str
) -> None:
    declare_in_fleet(tenant, "alerts")
    with pytest.raises(CommandError):
        run("declare", "fleet", "--namespace", namespace)


def test_doctor_warns_of_namespaces_that_only_other_cells_have(tenant: Tenant, fleet: MemoryFleet) -> None:
    other = fleet.build_store(FLEET, "other cell")
    other.declare_namespace(ALERTS, 4, {})
    assert [finding.severity for finding in find_namespace_findings()] == [Severity.OK]
    declare_in_fleet(tenant, "alerts")
    (finding,) = find_namespace_findings()
    assert finding.severity is Severity.WARNING
    assert str(ALERTS) in finding.text


def test_doctor_reports_stores_that_are_no_longer_configured(tenant: Tenant, fleet: MemoryFleet) -> None:
    declare_in_fleet(tenant, "alerts")
    with override_settings(TIMER_STORES=[UNREACHABLE]):
        (finding,) = [finding for finding in examine() if finding.code == "timer_store_names"]
    assert not finding.is_ok
    assert finding.text == "1 namespace in the timer store fleet, which is not in TIMER_STORES"


def test_a_cell_gets_a_new_identity_while_its_cluster_is_stopped(tenant: Tenant) -> None:
    before = get_cell_id()
    call = ServiceCallFactory(tenant_id=tenant.pk, start_before=db_now(), timer_take=1)
    node = Node.objects.create(
        owner_id=new_id(),
        role=NodeRole.ENGINE,
        hostname="engine-1",
        process_id=4711,
        started_at=db_now(),
        lease_until=db_now() + timedelta(seconds=8),
    )
    with pytest.raises(CommandError, match="The cluster runs"):
        run("renew_cell")
    assert get_cell_id() == before
    node.delete()
    assert str(before) not in run("renew_cell")
    assert get_cell_id() != before
    call.refresh_from_db()
    assert call.start_before is None
    action = OperatorAction.across_tenants.get(action="cell-renew")
    assert action.subject == str(before)

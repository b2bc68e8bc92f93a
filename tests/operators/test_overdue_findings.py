"""The finding on overdue calls names the tenant, the host and the limit that hold them back."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from eventservice.kernel.findings import Severity
from eventservice.kernel.ids import new_id
from eventservice.operators.health import check_overdue, read_cluster
from eventservice.tenants.directory import update_tenant
from eventservice.tenants.models import Tenant
from tests.factories import ServiceCallFactory
from timers.models import Node, NodeRole

pytestmark = pytest.mark.django_db

LATE = timedelta(minutes=2)


def explain(now: datetime, engines: int = 1) -> str:
    for _ in range(engines):
        Node.objects.create(
            owner_id=new_id(), role=NodeRole.ENGINE, hostname="host-1", process_id=1, started_at=now,
            lease_until=now + timedelta(seconds=8),
        )  # fmt: skip
    finding = check_overdue(1, LATE, read_cluster(now, []))
    assert finding.severity is Severity.ERROR
    return finding.remedy


def create_calls(tenant: Tenant, now: datetime, status: str, host: str, count: int = 1) -> None:
    for _ in range(count):
        ServiceCallFactory(tenant_id=tenant.pk, status=status, host=host, due_at=now - LATE)


def test_a_tenant_at_its_limit_is_named(tenant: Tenant, intruder: Tenant, at_noon: datetime) -> None:
    update_tenant(tenant.pk, max_in_flight=4)
    create_calls(tenant, at_noon, "Scheduled", "a.test")
    create_calls(tenant, at_noon, "Running", "a.test", 2)
    create_calls(tenant, at_noon, "Running", "b.test", 2)
    create_calls(intruder, at_noon, "Running", "b.test", 2)
    remedy = explain(at_noon)
    assert remedy.startswith("acme is at its in-flight limit: 4 calls of 4 are running.")
    assert "`manage.py tenant limits acme --max-in-flight NUMBER`" in remedy


def test_a_host_that_has_three_quarters_of_the_limit_is_named(tenant: Tenant, at_noon: datetime) -> None:
    update_tenant(tenant.pk, max_in_flight=4)
    create_calls(tenant, at_noon, "Scheduled", "a.test")
    create_calls(tenant, at_noon, "Running", "a.test", 2)
    assert explain(at_noon).startswith("No tenant with overdue calls is at its in-flight limit.")
    create_calls(tenant, at_noon, "Running", "a.test")
    assert explain(at_noon, engines=0).startswith(
        "a.test has as many calls of acme in flight as one host may: 3, of an in-flight limit of 4. "
        "One host gets at most three quarters of it"
    )


def test_every_engine_has_the_limit(tenant: Tenant, at_noon: datetime) -> None:
    update_tenant(tenant.pk, max_in_flight=4)
    create_calls(tenant, at_noon, "Scheduled", "a.test")
    create_calls(tenant, at_noon, "Running", "a.test", 4)
    assert explain(at_noon, engines=2).startswith("No tenant with overdue calls is at its in-flight limit.")


def test_without_an_engine_no_limit_is_blamed(at_noon: datetime) -> None:
    assert explain(at_noon, engines=0) == "No engine is running."

"""`manage.py tenant` creates tenants that other cells have, and namespaces in timer stores."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from eventservice.kernel.ids import new_id
from eventservice.operators.models import OperatorAction
from eventservice.tenants.models import Namespace, Tenant
from tests.contracts.timer_stores.memory_fleet import MemoryFleet

pytestmark = pytest.mark.django_db


def run(*arguments: str) -> Any:
    out = StringIO()
    call_command("tenant", *arguments, "--json", stdout=out)
    return json.loads(out.getvalue())


def test_a_tenant_can_have_the_id_that_it_has_in_another_cell() -> None:
    tenant_id = str(new_id())
    (made,) = run("create", "acme", "--id", tenant_id)
    assert made["tenantId"] == tenant_id
    assert OperatorAction.across_tenants.get().subject == tenant_id
    with pytest.raises(CommandError, match=f"The tenant 'acme' has the id {tenant_id}"):
        run("create", "other", "--id", tenant_id)
    with pytest.raises(CommandError, match="A tenant 'acme' exists"):
        run("create", "acme", "--id", str(new_id()))
    with pytest.raises(CommandError, match="--id"):
        run("create", "other", "--id", "acme")
    assert Tenant.objects.count() == 1


def test_a_namespace_is_created_in_a_timer_store(tenant: Tenant, fleet: MemoryFleet) -> None:
    (shown,) = run("namespace", "acme", "alerts", "--shards", "4", "--store", "fleet")
    assert shown["namespaces"] == ["alerts (4, in fleet)"]
    (declared,) = fleet.tables.namespaces.values()
    assert declared.num_shards == 4
    assert OperatorAction.across_tenants.get().detail == {"name": "alerts", "shards": 4, "store": "fleet"}


@pytest.mark.parametrize(
    ("store", "reason"), [("other", "must be one of fleet, away"), ("away", "is not available")]
)
def test_a_store_that_cannot_be_used_is_refused_with_the_reason(
    tenant: Tenant, fleet: MemoryFleet, store: str, reason: str
) -> None:
    with pytest.raises(CommandError, match=reason):
        run("namespace", "acme", "alerts", "--store", store)
    assert not Namespace.objects.for_tenant(tenant.pk).exists()
    assert not OperatorAction.across_tenants.exists()

"""The Python client declares namespaces by their size, or by a number of shards."""

from __future__ import annotations

import pytest

from eventservice.client import ApiError, Client
from eventservice.tenants.directory import create_tenant
from eventservice.tenants.keys import create_key
from eventservice.tenants.models import ApiKey


@pytest.mark.django_db(transaction=True)
def test_a_namespace_is_declared_once_and_listed(served: str) -> None:
    tenant = create_tenant("acme")
    _, key = create_key(tenant.tenant_id, list(ApiKey.Scope))
    with Client(served, tenant.tenant_id, key) as client:
        assert client.declare_namespace("blue", size="medium")["numShards"] == 256
        assert client.declare_namespace("blue", num_shards=256)["size"] == "medium"
        assert client.declare_namespace("blue")["size"] == "medium"
        assert [one["name"] for one in client.namespaces()] == ["blue", "default"]
        with pytest.raises(ApiError, match="fixed at 256"):
            client.declare_namespace("blue", size="large")
        with pytest.raises(ApiError, match="must not be given together with size"):
            client.declare_namespace("green", size="large", num_shards=8)
        with pytest.raises(ApiError, match="TIMER_STORES has no stores"):
            client.declare_namespace("green", store="fleet")

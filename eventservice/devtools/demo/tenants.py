"""The sample tenants with their namespaces and API keys."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from datetime import timedelta

from eventservice.db.now import db_now
from eventservice.devtools.demo.companies import LIMITS, NAMESPACES
from eventservice.tenants.directory import create_tenant, declare_namespace
from eventservice.tenants.keys import create_key, list_keys, record_use, revoke_key
from eventservice.tenants.models import ApiKey, Tenant

Scope = ApiKey.Scope
# The secrets of these keys are discarded, so nobody can use them.
RETIRED_KEY = "old backend"
KEYS = (
    (RETIRED_KEY, (Scope.READ, Scope.WRITE), None),
    ("backend", (Scope.READ, Scope.WRITE), None),
    ("reporting", (Scope.READ,), timedelta(days=90)),
)


def find_sample_tenants() -> dict[str, uuid.UUID]:
    return dict(Tenant.objects.filter(name__in=LIMITS).values_list("name", "pk"))


def use_keys(tenant_ids: Iterable[uuid.UUID]) -> None:
    for tenant_id in tenant_ids:
        for key in list_keys(tenant_id):
            if key.revoked_at is None:
                record_use(key)


def retire_keys(tenant_ids: Iterable[uuid.UUID]) -> None:
    for tenant_id in tenant_ids:
        for key in list_keys(tenant_id):
            if key.name == RETIRED_KEY:
                revoke_key(key.key_id)


def ensure_sample_tenants() -> dict[str, uuid.UUID]:
    """Create the sample tenants that do not exist yet. Return all by name."""
    tenants = find_sample_tenants()
    for name, limits in LIMITS.items():
        if name not in tenants:
            tenants[name] = _create_sample_tenant(name, limits)
    return tenants


def _create_sample_tenant(name: str, limits: dict[str, object]) -> uuid.UUID:
    tenant_id = create_tenant(name, **limits).tenant_id
    if name in NAMESPACES:
        declare_namespace(tenant_id, *NAMESPACES[name])
    for key, scopes, lifetime in KEYS:
        create_key(tenant_id, scopes, name=key, expires_at=db_now() + lifetime if lifetime else None)
    return tenant_id

"""The made-up tenants with what belongs to them beside their calls: namespaces and keys."""

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
# Their secrets are thrown away: nobody comes in with them.
RETIRED = "old backend"
KEYS = (
    (RETIRED, (Scope.READ, Scope.WRITE), None),
    ("backend", (Scope.READ, Scope.WRITE), None),
    ("reporting", (Scope.READ,), timedelta(days=90)),
)


def found() -> dict[str, uuid.UUID]:
    return dict(Tenant.objects.filter(name__in=LIMITS).values_list("name", "pk"))


def use_keys(tenant_ids: Iterable[uuid.UUID]) -> None:
    for tenant_id in tenant_ids:
        for key in list_keys(tenant_id):
            if key.revoked_at is None:
                record_use(key)


def retire_keys(tenant_ids: Iterable[uuid.UUID]) -> None:
    for tenant_id in tenant_ids:
        for key in list_keys(tenant_id):
            if key.name == RETIRED:
                revoke_key(key.key_id)


def settle() -> dict[str, uuid.UUID]:
    """The tenants by their names; made if they are not there."""
    there = found()
    for name, limits in LIMITS.items():
        if name not in there:
            there[name] = _make(name, limits)
    return there


def _make(name: str, limits: dict[str, object]) -> uuid.UUID:
    tenant_id = create_tenant(name, **limits).tenant_id
    if name in NAMESPACES:
        declare_namespace(tenant_id, *NAMESPACES[name])
    for key, scopes, life in KEYS:
        create_key(tenant_id, scopes, name=key, expires_at=db_now() + life if life else None)
    return tenant_id

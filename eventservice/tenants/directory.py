"""What the engine and the edge must know of a tenant at every call, kept for a few seconds."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from django.db import IntegrityError, connection, transaction

from eventservice.db.now import db_now
from eventservice.kernel.errors import Invalid, NotFound
from eventservice.kernel.secrets import Reencryption, encrypt
from eventservice.kernel.ttl_cache import TTLCache
from eventservice.tenants.models import DEFAULT_NAMESPACE, DEFAULT_SHARDS, Namespace, Tenant

CACHE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class TenantProfile:
    tenant_id: uuid.UUID
    name: str
    active: bool
    max_in_flight: int
    max_pending: int
    requests_per_minute: int
    secret_headers: frozenset[str]
    allowed_hosts: frozenset[str]
    signing_secret: str  # as it is stored: whoever only reads needs no key for it
    num_shards: dict[str, int]

    def shards_of(self, namespace: str) -> int:
        if namespace not in self.num_shards:
            # Another process may have declared it since.
            self.num_shards.update(_shards(self.tenant_id))
        if namespace not in self.num_shards:
            raise Invalid(
                "unknown_namespace",
                f"Namespace {namespace!r} does not exist.",
                errors={"namespace": "must exist"},
            )
        return self.num_shards[namespace]


_profiles: TTLCache[uuid.UUID, TenantProfile] = TTLCache(CACHE_SECONDS, max_size=100_000)


def get_profile(tenant_id: uuid.UUID) -> TenantProfile:
    return _profiles.get(tenant_id, lambda: _read(tenant_id))


def _read(tenant_id: uuid.UUID) -> TenantProfile:
    tenant = get_tenant(tenant_id)
    return TenantProfile(
        tenant_id=tenant_id,
        name=tenant.name,
        active=tenant.active,
        max_in_flight=tenant.max_in_flight,
        max_pending=tenant.max_pending,
        requests_per_minute=tenant.requests_per_minute,
        secret_headers=frozenset(name.lower() for name in tenant.secret_headers),
        allowed_hosts=frozenset(host.lower() for host in tenant.allowed_hosts),
        signing_secret=tenant.signing_secret,
        num_shards=_shards(tenant_id),
    )


def _shards(tenant_id: uuid.UUID) -> dict[str, int]:
    return dict(Namespace.objects.for_tenant(tenant_id).values_list("name", "num_shards"))


def list_tenant_ids() -> list[uuid.UUID]:
    return list(Tenant.objects.values_list("pk", flat=True))


def get_tenant(tenant_id: uuid.UUID) -> Tenant:
    tenant = Tenant.objects.filter(pk=tenant_id).first()
    if tenant is None:
        raise NotFound("tenant")
    return tenant


def list_namespaces(tenant_id: uuid.UUID) -> list[Namespace]:
    return list(Namespace.objects.for_tenant(tenant_id).order_by("name"))


def list_tenants(limit: int, after: str = "") -> list[Tenant]:
    """By name, those that follow the name `after`."""
    return list(Tenant.objects.filter(name__gt=after).order_by("name")[:limit])


def find_tenant_names(tenant_ids: Collection[uuid.UUID | None]) -> dict[uuid.UUID, str]:
    """For a list: of those that there are."""
    return dict(Tenant.objects.filter(pk__in=[t for t in tenant_ids if t]).values_list("pk", "name"))


def list_all_namespaces(limit: int) -> list[Namespace]:
    """Of all tenants, by the tenant's name, each with its tenant."""
    spaces = Namespace.across_tenants.select_related("tenant")
    return list(spaces.order_by("tenant__name", "name")[:limit])


def get_max_shards() -> int:
    """How many shards the largest namespace has: all namespaces share the ids from 0."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT MAX(num_shards) FROM namespaces")  # each second, by each engine
        return cursor.fetchone()[0] or DEFAULT_SHARDS


def create_tenant(name: str, **limits: Any) -> Tenant:
    """A tenant with its `default` namespace."""
    tenant = Tenant(name=name, created_at=db_now(), **_stored(limits))
    tenant.full_clean(validate_unique=False)
    with transaction.atomic():
        tenant.save(force_insert=True)
        declare_namespace(tenant.tenant_id, DEFAULT_NAMESPACE, DEFAULT_SHARDS)
    return tenant


def update_tenant(tenant_id: uuid.UUID, **changes: Any) -> Tenant:
    """Other processes see it within CACHE_SECONDS."""
    if changes:
        Tenant.objects.filter(pk=tenant_id).update(**_stored(changes))
    _profiles.clear()
    return get_tenant(tenant_id)


def _stored(changes: dict[str, Any]) -> dict[str, Any]:
    secret = changes.get("signing_secret")
    return {**changes, "signing_secret": encrypt(secret)} if secret else changes


def reencrypt_signing_secrets(work: Reencryption) -> int:
    """How many were changed. One that somebody sets meanwhile stays."""
    changed = 0
    signing = Tenant.objects.exclude(signing_secret="")
    for tenant_id, name, stored in signing.values_list("pk", "name", "signing_secret"):
        fresh = work.renewed(stored, f"signing secret of tenant {name}")
        if fresh != stored:
            changed += signing.filter(pk=tenant_id, signing_secret=stored).update(signing_secret=fresh)
    return changed


def declare_namespace(tenant_id: uuid.UUID, name: str, num_shards: int | None = None) -> Namespace:
    """Make it, or find it as it is; another number of shards is refused, but none is no wish."""
    existing = _namespace(tenant_id, name)
    if existing is None:
        shards = DEFAULT_SHARDS if num_shards is None else num_shards
        namespace = Namespace(tenant_id=tenant_id, name=name, num_shards=shards, created_at=db_now())
        namespace.full_clean(validate_unique=False)
        try:
            with transaction.atomic():
                namespace.save(force_insert=True)
        except IntegrityError:
            # Another request was faster: now it is there to be found.
            existing = _namespace(tenant_id, name)
            if existing is None:
                raise
        else:
            _profiles.clear()
            return namespace
    if num_shards is not None:
        existing.num_shards = num_shards
        existing.refuse_other_shards()
    return existing


def _namespace(tenant_id: uuid.UUID, name: str) -> Namespace | None:
    return Namespace.objects.for_tenant(tenant_id).filter(name=name).first()

"""Tenants and namespaces, and the cached profile of a tenant that every call needs."""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db import IntegrityError, connection, transaction
from django.db.models import Count, F, Q

from eventservice.db.now import DbNow, db_now
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
    bytes_per_minute: int
    max_stored_bytes: int
    stored_bytes: int  # as last measured
    secret_headers: frozenset[str]
    allowed_hosts: frozenset[str]
    signing_secret: str  # encrypted, as it is stored: reading a profile needs no key
    num_shards: dict[str, int]
    # The timer stores of the namespaces that have one.
    stores: dict[str, str]

    def get_num_shards(self, namespace: str) -> int:
        """Return the number of shards of a namespace. Raise Invalid if it does not exist."""
        if namespace not in self.num_shards:
            # Another process may have declared it since the profile was read.
            num_shards, stores = _read_namespaces(self.tenant_id)
            self.num_shards.update(num_shards)
            self.stores.update(stores)
        if namespace not in self.num_shards:
            raise Invalid(
                "unknown_namespace",
                f"Namespace {namespace!r} does not exist.",
                errors={"namespace": "must exist"},
            )
        return self.num_shards[namespace]

    def get_store(self, namespace: str) -> str | None:
        """Return the timer store of a namespace, or None if its timers are in this database. Raise Invalid if the
        namespace does not exist."""
        self.get_num_shards(namespace)
        return self.stores.get(namespace)


_profiles: TTLCache[uuid.UUID, TenantProfile] = TTLCache(CACHE_SECONDS, max_size=100_000)


def get_profile(tenant_id: uuid.UUID) -> TenantProfile:
    return _profiles.get(tenant_id, lambda: read_profile(tenant_id))


def read_profile(tenant_id: uuid.UUID) -> TenantProfile:
    """Return the profile as it is now. Raise NotFound if there is no such tenant."""
    tenant = get_tenant(tenant_id)
    num_shards, stores = _read_namespaces(tenant_id)
    return TenantProfile(
        tenant_id=tenant_id,
        name=tenant.name,
        active=tenant.active,
        max_in_flight=tenant.max_in_flight,
        max_pending=tenant.max_pending,
        requests_per_minute=tenant.requests_per_minute,
        bytes_per_minute=tenant.bytes_per_minute,
        max_stored_bytes=tenant.max_stored_bytes,
        stored_bytes=tenant.stored_bytes,
        secret_headers=frozenset(name.lower() for name in tenant.secret_headers),
        allowed_hosts=frozenset(host.lower() for host in tenant.allowed_hosts),
        signing_secret=tenant.signing_secret,
        num_shards=num_shards,
        stores=stores,
    )


def _read_namespaces(tenant_id: uuid.UUID) -> tuple[dict[str, int], dict[str, str]]:
    """Return the numbers of shards of a tenant's namespaces, and the timer stores of those that have one."""
    rows = list(Namespace.objects.for_tenant(tenant_id).values_list("name", "num_shards", "store"))
    return {name: shards for name, shards, _ in rows}, {name: store for name, _, store in rows if store}


def list_tenant_ids() -> list[uuid.UUID]:
    return list(Tenant.objects.values_list("pk", flat=True))


class TenantIds:
    """Lists the ids of all tenants for a caller that asks all the time.

    They are read again when the number of tenants has changed, and after CACHE_SECONDS at the latest. A caller gets the
    same tuple until then.
    """

    def __init__(self) -> None:
        self._ids: tuple[uuid.UUID, ...] = ()
        self._read_at: float | None = None

    def __call__(self) -> tuple[uuid.UUID, ...]:
        is_fresh = self._read_at is not None and time.monotonic() - self._read_at < CACHE_SECONDS
        if not is_fresh or Tenant.objects.count() != len(self._ids):
            self._ids, self._read_at = tuple(list_tenant_ids()), time.monotonic()
        return self._ids


def get_tenant(tenant_id: uuid.UUID) -> Tenant:
    tenant = Tenant.objects.filter(pk=tenant_id).first()
    if tenant is None:
        raise NotFound("tenant")
    return tenant


def list_namespaces(tenant_id: uuid.UUID) -> list[Namespace]:
    return list(Namespace.objects.for_tenant(tenant_id).order_by("name"))


def list_tenants(limit: int, after: str = "") -> list[Tenant]:
    """Return tenants in the order of their names, beginning after the name `after`."""
    return list(Tenant.objects.filter(name__gt=after).order_by("name")[:limit])


def list_nearly_full_tenants(tenant_id: uuid.UUID | None, share: float, limit: int) -> list[Tenant]:
    """Return tenants, or the one, that store at least this share of what they may, those with the most bytes first."""
    tenants = Tenant.objects.filter(stored_bytes__gte=F("max_stored_bytes") * share)
    if tenant_id is not None:
        tenants = tenants.filter(pk=tenant_id)
    return list(tenants.order_by("-stored_bytes", "name")[:limit])


def find_tenant_names(tenant_ids: Collection[uuid.UUID | None]) -> dict[uuid.UUID, str]:
    """Return the names of those of the tenants that exist."""
    return dict(Tenant.objects.filter(pk__in=[t for t in tenant_ids if t]).values_list("pk", "name"))


def list_all_namespaces(limit: int) -> list[Namespace]:
    """Return the first namespaces of all tenants, each with its tenant, in the order of the tenants' names."""
    spaces = Namespace.across_tenants.select_related("tenant")
    return list(spaces.order_by("tenant__name", "name")[:limit])


def list_namespaces_in_store(store: str) -> list[tuple[uuid.UUID, str]]:
    """Return the namespaces whose pending timers are in a timer store, each with its tenant."""
    return list(Namespace.across_tenants.filter(store=store).values_list("tenant_id", "name"))


def count_namespaces_by_store() -> dict[str, int]:
    """Return the numbers of namespaces by the names of their timer stores, whether these are configured or not."""
    spaces = Namespace.across_tenants.exclude(store="").order_by("store").values_list("store")
    return dict(spaces.annotate(Count("name")))


def is_any_namespace_in_store() -> bool:
    """Return whether the pending timers of any namespace are in a timer store."""
    return Namespace.across_tenants.exclude(store="").exists()


def get_max_shards() -> int:
    """Return the number of shards of the largest namespace. All namespaces share the shard ids from 0."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT MAX(num_shards) FROM namespaces")  # every engine asks each second
        return cursor.fetchone()[0] or DEFAULT_SHARDS


def create_tenant(name: str, **limits: Any) -> Tenant:
    """Create a tenant with its `default` namespace."""
    tenant = Tenant(name=name, created_at=db_now(), **_encrypt_signing_secret(limits))
    tenant.full_clean(validate_unique=False)
    with transaction.atomic():
        tenant.save(force_insert=True)
        declare_namespace(tenant.tenant_id, DEFAULT_NAMESPACE, DEFAULT_SHARDS)
    return tenant


def update_tenant(tenant_id: uuid.UUID, **changes: Any) -> Tenant:
    """Change a tenant. Other processes see it within CACHE_SECONDS."""
    if changes:
        Tenant.objects.filter(pk=tenant_id).update(**_encrypt_signing_secret(changes))
    _profiles.clear()
    return get_tenant(tenant_id)


def list_tenants_to_measure() -> list[uuid.UUID]:
    """Return the tenants whose storage is to be measured now: those who have waited longest first, new ones last."""
    due = Tenant.objects.filter(Q(measure_storage_at=None) | Q(measure_storage_at__lte=DbNow()))
    return list(due.order_by(F("measure_storage_at").asc(nulls_last=True)).values_list("pk", flat=True))


def record_stored_bytes(tenant_id: uuid.UUID, stored_bytes: int | None, measure_again_in: timedelta) -> None:
    """Record what was measured, unless that is None, and when to measure again."""
    measured = {} if stored_bytes is None else {"stored_bytes": stored_bytes}
    again = DbNow(measure_again_in)
    Tenant.objects.filter(pk=tenant_id).update(measure_storage_at=again, **measured)


def _encrypt_signing_secret(changes: dict[str, Any]) -> dict[str, Any]:
    secret = changes.get("signing_secret")
    return {**changes, "signing_secret": encrypt(secret)} if secret else changes


def reencrypt_signing_secrets(work: Reencryption) -> int:
    """Encrypt all signing secrets with the first key, and return how many changed. A secret set meanwhile is kept."""
    changed = 0
    signing = Tenant.objects.exclude(signing_secret="")
    for tenant_id, name, stored in signing.values_list("pk", "name", "signing_secret"):
        fresh = work.reencrypt(stored, f"signing secret of tenant {name}")
        if fresh != stored:
            changed += signing.filter(pk=tenant_id, signing_secret=stored).update(signing_secret=fresh)
    return changed


def declare_namespace(
    tenant_id: uuid.UUID, name: str, num_shards: int | None = None, store: str | None = None
) -> tuple[Namespace, bool]:
    """Return the namespace and whether this has created it.

    Raise Conflict if it has another number of shards or is in another store. Without a number, a new namespace has
    DEFAULT_SHARDS, and without a store it is in this database; an existing one keeps its own. A timer store has to know
    the namespace before (orchestration.feeder.namespaces).
    """
    existing = find_namespace(tenant_id, name)
    if existing is None:
        shards = DEFAULT_SHARDS if num_shards is None else num_shards
        namespace = Namespace(
            tenant_id=tenant_id, name=name, num_shards=shards, store=store or "", created_at=db_now()
        )
        namespace.full_clean(validate_unique=False)
        try:
            with transaction.atomic():
                namespace.save(force_insert=True)
        except IntegrityError:
            # Another request has created it meanwhile.
            existing = find_namespace(tenant_id, name)
            if existing is None:
                raise
        else:
            _profiles.clear()
            return namespace, True
    if num_shards is not None:
        existing.num_shards = num_shards
    if store is not None:
        existing.store = store
    existing.refuse_changes()
    return existing, False


def find_namespace(tenant_id: uuid.UUID, name: str) -> Namespace | None:
    return Namespace.objects.for_tenant(tenant_id).filter(name=name).first()

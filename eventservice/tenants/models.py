"""Tenants, their namespaces and their API keys, and refusals because of their limits."""

from __future__ import annotations

import uuid
from typing import Any

from django.core.validators import RegexValidator
from django.db import models

from eventservice.db.constraints import ImmutableField
from eventservice.kernel.errors import Conflict
from eventservice.kernel.ids import new_id
from eventservice.kernel.sharding import MAX_SHARDS
from eventservice.kernel.tenancy import TenantScopedModel

DEFAULT_NAMESPACE = "default"
DEFAULT_SHARDS = 16

MAX_TENANT_NAME_LENGTH = 64
MAX_NAMESPACE_LENGTH = 255
# Of the name of a timer store, as in TIMER_STORES.
MAX_STORE_NAME_LENGTH = 32


def _build_name_rule(max_length: int) -> RegexValidator:
    return RegexValidator(
        rf"^[a-z0-9](?:[a-z0-9._-]{{0,{max_length - 2}}}[a-z0-9])?\Z",
        f"1-{max_length} lower-case letters, digits, '.', '_' or '-', beginning and ending with a letter or digit",
    )


name_rule = _build_name_rule(MAX_TENANT_NAME_LENGTH)
namespace_rule = _build_name_rule(MAX_NAMESPACE_LENGTH)


class Tenant(models.Model):
    tenant_id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    name = models.CharField(max_length=MAX_TENANT_NAME_LENGTH, unique=True, validators=[name_rule])
    created_at = models.DateTimeField()
    active = models.BooleanField(default=True)
    # Encrypted. If it is set, every outbound request is signed with it (Standard Webhooks).
    signing_secret = models.TextField(blank=True, default="")
    # Headers whose values are secret, in addition to the built-in ones (execution.redaction); `*` stands for all.
    secret_headers = models.JSONField(default=list, blank=True)
    # Hosts that this tenant may call. Empty means all that the deployment allows.
    allowed_hosts = models.JSONField(default=list, blank=True)
    max_in_flight = models.PositiveIntegerField(default=1000)
    max_pending = models.PositiveIntegerField(default=1_000_000)
    requests_per_minute = models.PositiveIntegerField(default=60_000)
    bytes_per_minute = models.PositiveBigIntegerField(default=600_000_000)
    max_stored_bytes = models.PositiveBigIntegerField(default=100_000_000_000)
    # What the tenant's calls and attempts occupied when they were last measured (orchestration.statistics.storage), and
    # when they are measured again.
    stored_bytes = models.PositiveBigIntegerField(default=0, editable=False)
    measure_storage_at = models.DateTimeField(null=True, editable=False)

    class Meta:
        db_table = "tenants"

    def __str__(self) -> str:
        return self.name


class NamespaceSize(models.TextChoices):
    """A name for a number of shards."""

    SMALL = "small", "small: 16 shards"
    MEDIUM = "medium", "medium: 256 shards"
    LARGE = "large", "large: 1,024 shards"
    XLARGE = "xlarge", "xlarge: 4,096 shards"

    @property
    def num_shards(self) -> int:
        return SHARDS_BY_SIZE[self]


SHARDS_BY_SIZE = {
    NamespaceSize.SMALL: 16,
    NamespaceSize.MEDIUM: 256,
    NamespaceSize.LARGE: 1024,
    NamespaceSize.XLARGE: 4096,
}


class Namespace(TenantScopedModel):
    """A space of timer ids with a fixed number of shards."""

    pk = models.CompositePrimaryKey("tenant_id", "name")
    tenant = models.ForeignKey(Tenant, models.CASCADE)
    name = models.CharField(max_length=MAX_NAMESPACE_LENGTH, validators=[namespace_rule])
    num_shards = models.PositiveIntegerField(default=DEFAULT_SHARDS)
    # The timer store that holds its pending timers. Empty: this database.
    store = models.CharField(max_length=MAX_STORE_NAME_LENGTH, blank=True, default="", db_default="")
    created_at = models.DateTimeField()

    class Meta:
        db_table = "namespaces"
        constraints = [
            models.CheckConstraint(
                name="ck_namespaces_num_shards",
                condition=models.Q(num_shards__gte=1, num_shards__lte=MAX_SHARDS),
            ),
            # A timer's shard depends on the number of shards: timers would be lost if it changed.
            ImmutableField(name="tr_namespaces_num_shards", field="num_shards"),
            # Timers stay in the store in which they were created.
            ImmutableField(name="tr_namespaces_store", field="store"),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def size(self) -> NamespaceSize | None:
        """The name for its number of shards, if there is one."""
        return next((size for size, shards in SHARDS_BY_SIZE.items() if shards == self.num_shards), None)

    @property
    def audit_detail(self) -> dict[str, object]:
        """The facts that the audit log has about its creation."""
        return {
            "name": self.name,
            "shards": self.num_shards,
            **({"store": self.store} if self.store else {}),
        }

    def save(self, *args: Any, **kwargs: Any) -> None:
        # The database refuses it anyway; this error says what is wrong. A new object may stand for an existing row,
        # because Django's save() tries an UPDATE first.
        if not kwargs.get("force_insert"):
            self.refuse_changes()
        super().save(*args, **kwargs)

    def refuse_changes(self) -> None:
        """Raise Conflict if the namespace exists with another number of shards, or in another store."""
        stored = Namespace.objects.for_tenant(self.tenant_id).filter(name=self.name).first()
        if stored is None:
            return
        if stored.num_shards != self.num_shards:
            raise Conflict(
                "immutable", f"numShards of namespace {self.name!r} is fixed at {stored.num_shards}."
            )
        if stored.store != self.store:
            place = f"timer store {stored.store!r}" if stored.store else "service's own database"
            raise Conflict("immutable", f"The timers of namespace {self.name!r} stay in the {place}.")


class ApiKey(TenantScopedModel):
    """A credential: `es_<env>_<id>_<secret>`. The secret is shown once, and only its keyed hash is stored."""

    class Scope(models.TextChoices):
        READ = "read"
        WRITE = "write"
        ADMIN = "admin"

    key_id = models.CharField(primary_key=True, max_length=16)
    # Null for an operator's key, which belongs to no tenant.
    tenant = models.ForeignKey(Tenant, models.CASCADE, null=True, blank=True)
    name = models.CharField(max_length=100, default="")
    secret_hash = models.CharField(max_length=64)
    scopes = models.JSONField(default=list)
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)
    # The key that replaced this one. A key is rotated once.
    successor_id = models.CharField(max_length=16, null=True, blank=True)
    # Which SECRET_KEY the hash was made with. Null: made by an earlier release, and not used since.
    hash_key_id = models.CharField(max_length=16, null=True, blank=True, editable=False)

    class Meta:
        db_table = "api_keys"
        verbose_name = "API key"

    def __str__(self) -> str:
        return self.key_id

    tenant_id: uuid.UUID | None


class LimitCode(models.TextChoices):
    """The limits of a tenant for which requests are refused, by the error code of the refusal."""

    REQUESTS = "too_many_requests", "rate limit"
    BYTES = "too_many_bytes", "limit of bytes per minute"
    PENDING = "pending_ceiling", "pending limit"
    STORAGE = "storage_limit", "storage limit"

    @property
    def column(self) -> str:
        """The column of the tenant that holds the limit."""
        return LIMIT_COLUMNS[self]


LIMIT_COLUMNS = {
    LimitCode.REQUESTS: "requests_per_minute",
    LimitCode.BYTES: "bytes_per_minute",
    LimitCode.PENDING: "max_pending",
    LimitCode.STORAGE: "max_stored_bytes",
}


class LimitRefusal(TenantScopedModel):
    """The last time in which a tenant was refused something because of a limit (eventservice.tenants.refusals)."""

    pk = models.CompositePrimaryKey("tenant_id", "code")
    tenant = models.ForeignKey(Tenant, models.CASCADE)
    code = models.CharField(max_length=32, choices=LimitCode.choices)
    since = models.DateTimeField()
    last_at = models.DateTimeField()
    count = models.PositiveBigIntegerField()

    class Meta:
        db_table = "limit_refusals"
        constraints = [
            models.CheckConstraint(
                name="ck_limit_refusals_code", condition=models.Q(code__in=LimitCode.values)
            )
        ]

    def __str__(self) -> str:
        return f"{self.get_code_display()} from {self.since}"

    tenant_id: uuid.UUID

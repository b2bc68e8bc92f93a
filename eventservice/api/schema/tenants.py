"""Tenants, their namespaces and their API keys: their requests and responses."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta
from typing import Annotated, Any, Self

from pydantic import AfterValidator, ConfigDict, Field, RootModel, model_validator

from eventservice.api.schema.base import (
    Page,
    RequestModel,
    ResponseModel,
    omittable,
    pattern,
    raise_for_members,
    rule_error,
)
from eventservice.api.schema.types import (
    HEADER_NAME,
    HOST,
    WHOLE,
    DescribedPattern,
    Duration,
    Instant,
    Label,
    OneLine,
    UtcTime,
)
from eventservice.db.now import db_now
from eventservice.kernel.errors import Conflict
from eventservice.kernel.sharding import MAX_SHARDS
from eventservice.tenants.keys import DEFAULT_OVERLAP, MAX_LIFETIME, MAX_OVERLAP
from eventservice.tenants.models import (
    DEFAULT_SHARDS,
    MAX_STORE_NAME_LENGTH,
    SHARDS_BY_SIZE,
    ApiKey,
    LimitCode,
    LimitRefusal,
    Namespace,
    NamespaceSize,
    Tenant,
    name_rule,
    namespace_rule,
)
from execution.redaction import ALL_HEADERS
from execution.url_rules import BadUrl, is_header_name, parse_host
from orchestration.statistics.usage import TenantUsage

MAX_LISTED = 200
MAX_KEY_NAME_LENGTH = 100

_SIZES = ", ".join(f"`{size}` is {shards}" for size, shards in SHARDS_BY_SIZE.items())
_WEBHOOK_SECRET = r"whsec_[A-Za-z0-9+/]{32,128}={0,2}"  # noqa: S105 (its form)


def _parse_host(text: str) -> str:
    """Parse hosts as URLs are parsed, because they are compared with those of URLs."""
    try:
        return parse_host(text)
    except BadUrl:
        raise rule_error("must be a host name or address, without scheme, port or *") from None


def _check_header_name(name: str) -> str:
    """Refuse `*` in a name, which may contain it: it would look like a wildcard. Alone it stands for all headers."""
    if name != ALL_HEADERS and (not is_header_name(name) or "*" in name):
        raise rule_error(
            "must be the whole name of a header, such as X-Session, without : or *, or * alone for all headers"
        )
    return name


def _check_expiry(moment: datetime) -> datetime:
    now = db_now()
    if not now < moment <= now + MAX_LIFETIME:
        raise rule_error(f"must be in the future, and within {MAX_LIFETIME.days} days from now")
    return moment


TenantName = Annotated[
    str,
    pattern(name_rule.regex.pattern.replace(r"\Z", "$"), str(name_rule.message)),
    Field(examples=["acme"]),
]
NewNamespaceName = Annotated[
    str,
    pattern(namespace_rule.regex.pattern.replace(r"\Z", "$"), str(namespace_rule.message)),
    Field(examples=["billing"]),
]
Host = Annotated[Label, Field(max_length=253), DescribedPattern(f"^{HOST}$"), AfterValidator(_parse_host)]
HeaderName = Annotated[
    Label,
    Field(max_length=253),
    DescribedPattern(rf"^({HEADER_NAME.replace('*', '')}|\*)$"),
    AfterValidator(_check_header_name),
]
Scope = Annotated[ApiKey.Scope, Field(strict=False)]


class TenantSettingsSchema(RequestModel):
    """The settings of a tenant. `changes()` has those that were given, by their columns."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"maxInFlight": 500, "requestsPerMinute": 6000}]}
    )

    active: bool = omittable(description="The keys of an inactive tenant are refused.")
    max_in_flight: Annotated[int, Field(ge=1, le=100_000), WHOLE] = omittable(
        description="How many requests may be under way at a time."
    )
    max_pending: Annotated[int, Field(ge=1, le=100_000_000), WHOLE] = omittable(
        description="How many calls may be pending at a time: the pending limit."
    )
    requests_per_minute: Annotated[int, Field(ge=1, le=100_000_000), WHOLE] = omittable(
        description="The rate limit of this API."
    )
    bytes_per_minute: Annotated[int, Field(ge=1024, le=10**15), WHOLE] = omittable(
        description="How many bytes of request bodies may be sent to this API."
    )
    max_stored_bytes: Annotated[int, Field(ge=1024, le=10**15), WHOLE] = omittable(
        description="How many bytes calls and their attempts may occupy. Above it, new calls are refused."
    )
    allowed_hosts: Annotated[list[Host], Field(max_length=MAX_LISTED)] = omittable(
        description="The hosts that calls may reach: names or addresses without scheme, port or `*`. "
        "An empty array allows every host."
    )
    secret_headers: Annotated[list[HeaderName], Field(max_length=MAX_LISTED)] = omittable(
        description="Names of headers whose values are secret, beside the built-in ones, or `*` for all headers."
    )
    signing_secret: Annotated[
        str,
        pattern(f"^({_WEBHOOK_SECRET})?$", 'whsec_ and the base64 of 24 to 96 random bytes, or ""'),
    ] = omittable(
        description="Requests are signed with it (Standard Webhooks). An empty string turns that off; `null` does not."
    )


class TenantInputSchema(TenantSettingsSchema):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"name": "globex", "allowedHosts": ["example.com"], "maxInFlight": 500}]
        }
    )

    name: TenantName

    @property
    def settings(self) -> dict[str, Any]:
        """The given settings, by their columns."""
        return {column: value for column, value in self.changes().items() if column != "name"}


class NamespaceInputSchema(RequestModel):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"name": "billing", "size": "medium"}, {"name": "billing", "numShards": 32}]
        }
    )

    name: NewNamespaceName
    size: Annotated[NamespaceSize, Field(strict=False)] | None = Field(
        default=None,
        description=f"A number of shards by its name: {_SIZES}. Instead of `numShards`.",
    )
    num_shards: Annotated[int, Field(ge=1, le=MAX_SHARDS), WHOLE] | None = Field(
        default=None,
        description="The number of shards, fixed once the namespace exists. Instead of `size`. "
        f"If neither is given, a new namespace has {DEFAULT_SHARDS}.",
    )
    store: Annotated[str, Field(max_length=MAX_STORE_NAME_LENGTH)] | None = Field(
        default=None,
        description="The timer store that holds the pending timers of the namespace, by its name in `TIMER_STORES`, fixed "
        "once the namespace exists. If it is not given, a new namespace is in the service's own database.",
    )

    @model_validator(mode="after")
    def _check_that_one_is_given(self) -> Self:
        if self.size is not None and self.num_shards is not None:
            raise_for_members({"numShards": "must not be given together with size"})
        return self

    @property
    def shards(self) -> int | None:
        """The number of shards that either member gives."""
        return self.num_shards if self.size is None else self.size.num_shards


class ApiKeyInputSchema(RequestModel):
    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "shop", "scopes": ["read", "write"]}]})

    name: Annotated[OneLine | None, Field(max_length=MAX_KEY_NAME_LENGTH)] = Field(
        default=None, description="What the key is for."
    )
    scopes: Annotated[list[Scope], Field(min_length=1, max_length=len(ApiKey.Scope))]
    expires_at: Annotated[Instant, AfterValidator(_check_expiry)] | None = Field(
        default=None,
        description=f"In the future, and within {MAX_LIFETIME.days} days from now. By default a key never expires.",
    )

    @property
    def scope_names(self) -> list[str]:
        return sorted({scope.value for scope in self.scopes})


class RotationSchema(RequestModel):
    model_config = ConfigDict(json_schema_extra={"examples": [{"overlap": "24h"}]})

    overlap: Annotated[float, Duration(0, MAX_OVERLAP.total_seconds())] | None = Field(
        default=None, description="How long the old key stays valid. Defaults to `24h`."
    )

    @property
    def overlap_time(self) -> timedelta:
        return DEFAULT_OVERLAP if self.overlap is None else timedelta(seconds=self.overlap)


def build_name_conflict(name: str) -> Conflict:
    """Return the error of a new tenant whose name another tenant has."""
    return Conflict("already_exists", f"A tenant {name!r} already exists.", errors={"name": "must be new"})


# --- responses ----------------------------------------------------------------------------------------------------


class TenantSchema(ResponseModel):
    tenant_id: uuid.UUID
    name: str
    active: bool
    created_at: UtcTime
    max_in_flight: int
    max_pending: int
    requests_per_minute: int
    bytes_per_minute: int
    max_stored_bytes: int
    stored_bytes: int = Field(description="About how many bytes are stored, as last measured.")
    allowed_hosts: list[str]
    secret_headers: list[str]
    signs: bool = Field(description="Whether requests are signed: the tenant has a signing secret.")

    @classmethod
    def from_tenant(cls, tenant: Tenant) -> TenantSchema:
        return cls(
            tenant_id=tenant.tenant_id,
            name=tenant.name,
            active=tenant.active,
            created_at=tenant.created_at,
            max_in_flight=tenant.max_in_flight,
            max_pending=tenant.max_pending,
            requests_per_minute=tenant.requests_per_minute,
            bytes_per_minute=tenant.bytes_per_minute,
            max_stored_bytes=tenant.max_stored_bytes,
            stored_bytes=tenant.stored_bytes,
            allowed_hosts=tenant.allowed_hosts,
            secret_headers=tenant.secret_headers,
            signs=bool(tenant.signing_secret),
        )


class LimitRefusalSchema(ResponseModel):
    """The last time in which requests were refused because of one limit."""

    code: LimitCode = Field(description="The error code of these refusals.")
    count: int
    since: UtcTime
    last_at: UtcTime

    @classmethod
    def from_refusal(cls, refusal: LimitRefusal) -> LimitRefusalSchema:
        return cls(
            code=LimitCode(refusal.code),
            count=refusal.count,
            since=refusal.since,
            last_at=refusal.last_at,
        )


class TenantUsageSchema(ResponseModel):
    """The use of a tenant's limits. Calls are counted up to a million."""

    in_flight: int = Field(description="Calls with a running attempt.")
    max_in_flight: int
    pending: int = Field(description="Scheduled calls.")
    max_pending: int
    stored_bytes: int = Field(description="About how many bytes are stored, as last measured.")
    max_stored_bytes: int
    refusals: list[LimitRefusalSchema] = Field(
        description="Of each limit for which something was refused the last time, the latest first. Refusals that are "
        "less than five minutes apart count as one time. The newest may be ten seconds old."
    )

    @classmethod
    def from_usage(cls, usage: TenantUsage) -> TenantUsageSchema:
        return cls(
            in_flight=usage.in_flight,
            max_in_flight=usage.tenant.max_in_flight,
            pending=usage.pending,
            max_pending=usage.tenant.max_pending,
            stored_bytes=usage.stored_bytes,
            max_stored_bytes=usage.tenant.max_stored_bytes,
            refusals=[LimitRefusalSchema.from_refusal(refusal) for refusal in usage.refusals],
        )


class TenantReceiptSchema(ResponseModel):
    """The response to a key without the scope `read` that has changed a tenant."""

    tenant_id: uuid.UUID


class TenantOrReceiptSchema(RootModel[TenantSchema | TenantReceiptSchema]):
    """The tenant, or a receipt if the key does not have the scope `read`."""


class NamespaceSchema(ResponseModel):
    name: str
    size: NamespaceSize | None = Field(description="The name for the number of shards, if there is one.")
    num_shards: int
    store: str | None = Field(
        description="The timer store that holds its pending timers. Null: they are in the service's own database."
    )
    created_at: UtcTime

    @classmethod
    def from_namespace(cls, namespace: Namespace) -> NamespaceSchema:
        return cls(
            name=namespace.name,
            size=namespace.size,
            num_shards=namespace.num_shards,
            store=namespace.store or None,
            created_at=namespace.created_at,
        )


class ApiKeySchema(ResponseModel):
    key_id: str
    name: str
    scopes: list[ApiKey.Scope]
    created_at: UtcTime
    expires_at: UtcTime | None
    revoked_at: UtcTime | None
    last_used_at: UtcTime | None = Field(description="To the hour.")
    successor: str | None = Field(description="The `keyId` of the key that replaces this one.")

    @classmethod
    def from_key(cls, key: ApiKey) -> ApiKeySchema:
        return cls(**_build_key_members(key))


class NewApiKeySchema(ApiKeySchema):
    key: str = Field(description="The key itself. It is shown only in this response.")

    @classmethod
    def from_new_key(cls, key: ApiKey, text: str) -> NewApiKeySchema:
        return cls(**_build_key_members(key), key=text)


class TenantPageSchema(Page[TenantSchema]):
    pass


class NamespacePageSchema(Page[NamespaceSchema]):
    pass


class ApiKeyPageSchema(Page[ApiKeySchema]):
    pass


def _build_key_members(key: ApiKey) -> dict[str, Any]:
    return {
        "key_id": key.key_id,
        "name": key.name,
        "scopes": key.scopes,
        "created_at": key.created_at,
        "expires_at": key.expires_at,
        "revoked_at": key.revoked_at,
        "last_used_at": key.last_used_at,
        "successor": key.successor_id,
    }

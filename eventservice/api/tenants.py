"""Tenants (operators), and their namespaces and API keys (whoever has the scope `admin`)."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from django.db import IntegrityError
from django.http import HttpResponse
from rest_framework.request import Request

from eventservice.api import serializers as shapes
from eventservice.api.auth import Scope
from eventservice.api.bodies import has_body, read_object
from eventservice.api.fields import Fields, checked, show_instant
from eventservice.api.problems import Fault, Refusal
from eventservice.api.queries import Query, listed, make_cursor
from eventservice.api.schema import PAGING, described
from eventservice.api.views import ApiView, no_content, reply
from eventservice.kernel.errors import Conflict, NotFound
from eventservice.kernel.now import db_now
from eventservice.kernel.sharding import MAX_SHARDS
from eventservice.tenants.directory import change_tenant, create_tenant, declare_namespace
from eventservice.tenants.keys import create_key, revoke_key, rotate_key
from eventservice.tenants.models import DEFAULT_SHARDS, ApiKey, Namespace, Tenant, name_rule

NAME = re.compile(name_rule.regex)
NAME_RULE = str(name_rule.message)
SIGNING_SECRET = re.compile(r"whsec_[A-Za-z0-9+/]{32,128}={0,2}")
LONGEST_OVERLAP = 30 * 86_400.0
DEFAULT_OVERLAP = 86_400.0
SMALL = 64 * 1024


class AdminView(ApiView):
    """Reading takes `read`, everything else `admin`."""

    def _require_scope(self, method: str) -> None:
        self.scope = None if method in ("GET", "HEAD", "OPTIONS") else Scope.ADMIN
        super()._require_scope(method)

    def read_fields(self) -> tuple[Fields, list[Fault]]:
        faults: list[Fault] = []
        document = read_object(self.request, SMALL) if has_body(self.request) else {}
        return Fields(document, faults), faults

    def grant_no_more_than_own(self, scopes: Iterable[str]) -> None:
        if missing := set(scopes) - self.principal.scopes:
            raise Refusal(
                403, "scope_missing", f"A key cannot give what it has not: {', '.join(sorted(missing))}."
            )

    def read_page(self, list_id: str) -> tuple[list[Any] | None, int]:
        faults: list[Fault] = []
        query = Query(self.request._request.GET, faults)
        limit, position = query.limit(), query.cursor(list_id)
        query.no_others()
        checked(faults)
        return position, limit


def answer_page(rows: list[Any], limit: int, list_id: str, show: Any, key: str) -> HttpResponse:
    more = len(rows) > limit
    cursor = make_cursor(list_id, [getattr(rows[limit - 1], key)]) if more else None
    return reply(listed([show(row) for row in rows[:limit]], cursor))


# --- tenants --------------------------------------------------------------------------------------------------


class Tenants(AdminView):
    for_operators = True

    @described(
        "listTenants",
        "tenants",
        gives=shapes.TenantPage,
        parameters=PAGING,
        about="All tenants, by name. For operators.",
    )
    def get(self, request: Request) -> HttpResponse:
        position, limit = self.read_page("tenants")
        tenants = Tenant.objects.filter(name__gt=position[0] if position else "").order_by("name")
        return answer_page(list(tenants[: limit + 1]), limit, "tenants", show_tenant, "name")

    @described(
        "createTenant",
        "tenants",
        takes=shapes.TenantInputSerializer,
        gives=shapes.TenantSerializer,
        status=201,
        about="A new tenant. For operators.",
    )
    def post(self, request: Request) -> HttpResponse:
        fields, faults = self.read_fields()
        name = fields.matching("name", NAME, NAME_RULE)
        changes = _read_limits(fields)
        fields.no_others()
        checked(faults)
        try:
            tenant = create_tenant(name, **changes)
        except IntegrityError:
            raise _taken(name) from None
        return reply(show_tenant(tenant), 201, {"Location": f"{request.path}/{tenant.tenant_id}"})


class OneTenant(AdminView):
    @described("getTenant", "tenants", gives=shapes.TenantSerializer, about="One tenant.")
    def get(self, request: Request, tenant_id: uuid.UUID) -> HttpResponse:
        return reply(show_tenant(Tenant.objects.get(pk=tenant_id)))

    @described(
        "changeTenant",
        "tenants",
        takes=shapes.LimitsSerializer,
        gives=shapes.TenantSerializer,
        about="Change a tenant's limits. For operators.",
    )
    def patch(self, request: Request, tenant_id: uuid.UUID) -> HttpResponse:
        if not self.principal.is_operator:
            raise Refusal(403, "operators_only", "Only operators may ask this.")
        fields, faults = self.read_fields()
        changes = _read_limits(fields)
        fields.no_others()
        checked(faults)
        return reply(show_tenant(change_tenant(tenant_id, **changes)))


def _taken(name: str) -> Conflict:
    return Conflict("already_exists", f"A tenant {name!r} exists.", faults={"name": "must be new"})


def _read_limits(fields: Fields) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    if "active" in fields:
        changes["active"] = fields.boolean("active")
    for name, column, most in (
        ("maxInFlight", "max_in_flight", 100_000),
        ("maxPending", "max_pending", 100_000_000),
        ("requestsPerMinute", "requests_per_minute", 100_000_000),
    ):
        if name in fields:
            changes[column] = fields.integer(name, least=1, most=most)
    for name, column in (("allowedHosts", "allowed_hosts"), ("secretHeaders", "secret_headers")):
        if name in fields:
            changes[column] = fields.texts(name, most=200, longest=253, required=True)
    if "signingSecret" in fields:
        rule = 'whsec_ and the base64 of 24 to 96 random bytes, or ""'
        given = fields.matching("signingSecret", re.compile(f"(?:{SIGNING_SECRET.pattern})?"), rule, "")
        changes["signing_secret"] = given
    return changes


def show_tenant(tenant: Tenant) -> dict[str, Any]:
    return {
        "tenantId": str(tenant.tenant_id),
        "name": tenant.name,
        "active": tenant.active,
        "createdAt": show_instant(tenant.created_at),
        "maxInFlight": tenant.max_in_flight,
        "maxPending": tenant.max_pending,
        "requestsPerMinute": tenant.requests_per_minute,
        "allowedHosts": tenant.allowed_hosts,
        "secretHeaders": tenant.secret_headers,
        "signs": bool(tenant.signing_secret),
    }


# --- namespaces -----------------------------------------------------------------------------------------------


class Namespaces(AdminView):
    @described(
        "listNamespaces",
        "tenants",
        gives=shapes.NamespacePage,
        parameters=PAGING,
        about="Its namespaces, by name.",
    )
    def get(self, request: Request, tenant_id: uuid.UUID) -> HttpResponse:
        list_id = f"namespaces {tenant_id}"
        position, limit = self.read_page(list_id)
        spaces = Namespace.objects.for_tenant(tenant_id).filter(name__gt=position[0] if position else "")
        return answer_page(list(spaces.order_by("name")[: limit + 1]), limit, list_id, show_namespace, "name")

    @described(
        "declareNamespace",
        "tenants",
        takes=shapes.NamespaceInputSerializer,
        gives=shapes.NamespaceSerializer,
        status=(200, 201),
        about="Make a namespace. Its number of shards is fixed.",
    )
    def post(self, request: Request, tenant_id: uuid.UUID) -> HttpResponse:
        fields, faults = self.read_fields()
        name = fields.matching("name", NAME, NAME_RULE)
        num_shards = fields.integer("numShards", DEFAULT_SHARDS, least=1, most=MAX_SHARDS)
        fields.no_others()
        checked(faults)
        there = Namespace.objects.for_tenant(tenant_id).filter(name=name).exists()
        namespace = declare_namespace(tenant_id, name, num_shards)
        return reply(show_namespace(namespace), 200 if there else 201, {"Location": f"{request.path}/{name}"})


class OneNamespace(AdminView):
    @described("getNamespace", "tenants", gives=shapes.NamespaceSerializer, about="One namespace.")
    def get(self, request: Request, tenant_id: uuid.UUID, name: str) -> HttpResponse:
        namespace = Namespace.objects.for_tenant(tenant_id).filter(name=name).first()
        if namespace is None:
            raise NotFound("namespace")
        return reply(show_namespace(namespace))


def show_namespace(namespace: Namespace) -> dict[str, Any]:
    return {
        "name": namespace.name,
        "numShards": namespace.num_shards,
        "createdAt": show_instant(namespace.created_at),
    }


# --- API keys -------------------------------------------------------------------------------------------------


class ApiKeys(AdminView):
    @described(
        "listApiKeys",
        "tenants",
        gives=shapes.KeyPage,
        parameters=PAGING,
        about="Its API keys, without their secrets.",
    )
    def get(self, request: Request, tenant_id: uuid.UUID) -> HttpResponse:
        list_id = f"api-keys {tenant_id}"
        position, limit = self.read_page(list_id)
        keys = ApiKey.objects.for_tenant(tenant_id).filter(key_id__gt=position[0] if position else "")
        return answer_page(list(keys.order_by("key_id")[: limit + 1]), limit, list_id, show_key, "key_id")

    @described(
        "createApiKey",
        "tenants",
        takes=shapes.KeyInputSerializer,
        gives=shapes.NewKeySerializer,
        status=201,
        about="A new API key, shown this once.",
    )
    def post(self, request: Request, tenant_id: uuid.UUID) -> HttpResponse:
        fields, faults = self.read_fields()
        name = fields.text("name", "", most=100)
        scopes = _read_scopes(fields)
        expires_at = fields.instant("expiresAt", None)
        if expires_at is not None and expires_at <= db_now():
            fields.fault("expiresAt", "must be in the future")
        fields.no_others()
        checked(faults)
        self.grant_no_more_than_own(scopes)
        key, text = create_key(tenant_id, scopes, name=name, expires_at=expires_at)
        key.refresh_from_db()
        return reply({**show_key(key), "key": text}, 201)


class RotateKey(AdminView):
    @described(
        "rotateApiKey",
        "tenants",
        takes=shapes.RotationSerializer,
        gives=shapes.NewKeySerializer,
        status=201,
        about="A successor with the same rights. The old key ends after the overlap.",
    )
    def post(self, request: Request, tenant_id: uuid.UUID, key_id: str) -> HttpResponse:
        key = _usable(tenant_id, key_id)
        self.grant_no_more_than_own(key.scopes)
        fields, faults = self.read_fields()
        seconds = fields.duration("overlap", DEFAULT_OVERLAP, most=LONGEST_OVERLAP)
        fields.no_others()
        checked(faults)
        successor, text = rotate_key(key, timedelta(seconds=seconds))
        successor.refresh_from_db()
        return reply({**show_key(successor), "key": text}, 201)


class RevokeKey(AdminView):
    @described("revokeApiKey", "tenants", status=204, about="End a key now.")
    def post(self, request: Request, tenant_id: uuid.UUID, key_id: str) -> HttpResponse:
        _of_tenant(tenant_id, key_id)
        revoke_key(key_id)
        return no_content()


def _of_tenant(tenant_id: uuid.UUID, key_id: str) -> ApiKey:
    key: ApiKey | None = ApiKey.objects.for_tenant(tenant_id).filter(pk=key_id).first()
    if key is None:
        raise NotFound("API key")
    return key


def _usable(tenant_id: uuid.UUID, key_id: str) -> ApiKey:
    key = _of_tenant(tenant_id, key_id)
    if key.revoked_at is not None:
        raise Conflict("wrong_state", "This key has been revoked.")
    if key.expires_at is not None and key.expires_at <= db_now():
        raise Conflict("wrong_state", "This key has expired.")
    return key


def _read_scopes(fields: Fields) -> list[str]:
    scopes = fields.texts("scopes", most=3, longest=8, required=True)
    texts = set(map(str, scopes))
    if "scopes" in fields and not texts <= set(Scope.values):
        fields.fault("scopes", "must be of " + ", ".join(Scope.values))
    if scopes == [] and fields.value("scopes") == []:
        fields.fault("scopes", "must not be empty")
    return sorted(texts)


def show_key(key: ApiKey) -> dict[str, Any]:
    return {
        "keyId": key.key_id,
        "name": key.name,
        "scopes": key.scopes,
        "createdAt": show_instant(key.created_at),
        "expiresAt": show_instant(key.expires_at),
        "revokedAt": show_instant(key.revoked_at),
        "lastUsedAt": show_instant(key.last_used_at),
    }

"""Tenants (operators), and their namespaces and API keys (whoever has the scope `admin`)."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any

from django.db import IntegrityError, transaction
from django.http import HttpResponse
from rest_framework.request import Request

from eventservice.api import serializers as shapes
from eventservice.api.authentication import Scope
from eventservice.api.fields import Fields, raise_if_invalid
from eventservice.api.formats import format_instant
from eventservice.api.openapi import PAGING, described
from eventservice.api.pagination import Query, listed, make_cursor
from eventservice.api.parsers import has_body, read_object
from eventservice.api.problems import FieldError, Problem
from eventservice.api.tenant_rules import (
    name_taken,
    read_key,
    read_limits,
    read_name,
    read_namespace,
    read_overlap,
)
from eventservice.api.views import ApiView, no_content, reply
from eventservice.kernel.errors import NotFound
from eventservice.kernel.ids import new_id
from eventservice.operators.audit_log import record_action
from eventservice.tenants.directory import create_tenant, declare_namespace, update_tenant
from eventservice.tenants.keys import create_key, get_key, require_rotatable, revoke_key, rotate_key
from eventservice.tenants.models import ApiKey, Namespace, Tenant

SMALL = 64 * 1024


class AdminView(ApiView):
    """Reading takes `read`, everything else `admin`."""

    @property
    def rate_policy(self) -> str:
        """A key that asks too often, perhaps a leaked one, does not keep the one that would revoke it from doing so."""
        return "administration" if Scope.ADMIN in self.principal.scopes else super().rate_policy

    def _require_scope(self, method: str) -> None:
        self.scope = None if method in ("GET", "HEAD", "OPTIONS") else Scope.ADMIN
        super()._require_scope(method)

    def read_fields(self) -> tuple[Fields, list[FieldError]]:
        faults: list[FieldError] = []
        document = read_object(self.request, SMALL) if has_body(self.request) else {}
        return Fields(document, faults), faults

    def grant_no_more_than_own(self, scopes: Iterable[str]) -> None:
        if missing := set(scopes) - self.principal.scopes:
            raise Problem(
                403, "scope_missing", f"A key cannot give what it has not: {', '.join(sorted(missing))}."
            )

    def note(self, action: str, tenant_id: uuid.UUID, subject: object, **detail: Any) -> None:
        """In the action log, where the console's lines are too; in the transaction of what it tells of."""
        record_action(self.principal, action, tenant_id=tenant_id, subject=subject, **detail)

    def note_key(self, action: str, key: ApiKey, **detail: Any) -> None:
        said = {"name": key.name, "scopes": key.scopes, "expires": format_instant(key.expires_at), **detail}
        record_action(self.principal, action, tenant_id=key.tenant_id, subject=key.key_id, **said)

    def read_page(self, list_id: str) -> tuple[list[Any] | None, int]:
        faults: list[FieldError] = []
        query = Query(self.request._request.GET, faults)
        limit, position = query.limit(), query.cursor(list_id)
        query.no_others()
        raise_if_invalid(faults)
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
        sends=["Location"],
        about="A new tenant. For operators.",
    )
    def post(self, request: Request) -> HttpResponse:
        fields, faults = self.read_fields()
        name, changes = read_name(fields), read_limits(fields)
        fields.no_others()
        raise_if_invalid(faults)
        tenant_id = new_id()
        try:
            with transaction.atomic():
                tenant = create_tenant(name, tenant_id=tenant_id, **changes)
                self.note("tenant-create", tenant_id, tenant_id, name=name)
        except IntegrityError:
            raise name_taken(name) from None
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
            raise Problem(403, "operators_only", "Only operators may ask this.")
        fields, faults = self.read_fields()
        changes = read_limits(fields)
        fields.no_others()
        raise_if_invalid(faults)
        with transaction.atomic():
            told = _changes_told(Tenant.objects.select_for_update().get(pk=tenant_id), changes)
            tenant = update_tenant(tenant_id, **changes)
            for action, detail in told.items():
                self.note(action, tenant_id, tenant_id, **detail)
        return reply(show_tenant(tenant))


def _changes_told(tenant: Tenant, changes: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """As the console, which has a form for each, notes what of this is a change; never a secret."""
    told: dict[str, dict[str, Any]] = {}
    different = {column: value for column, value in changes.items() if getattr(tenant, column) != value}
    secret = different.pop("signing_secret", None)
    if secret is not None:
        set_or_rotate = "tenant-secret-rotate" if tenant.signing_secret else "tenant-secret-set"
        told[set_or_rotate if secret else "tenant-secret-clear"] = {}
    if "active" in different:
        told["tenant-activate" if different.pop("active") else "tenant-deactivate"] = {}
    if different:
        told["tenant-change"] = different
    return told


def show_tenant(tenant: Tenant) -> dict[str, Any]:
    return {
        "tenantId": str(tenant.tenant_id),
        "name": tenant.name,
        "active": tenant.active,
        "createdAt": format_instant(tenant.created_at),
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
        sends=["Location"],
        about="Make a namespace, or find it as it is. Its number of shards is fixed.",
    )
    def post(self, request: Request, tenant_id: uuid.UUID) -> HttpResponse:
        fields, faults = self.read_fields()
        name, num_shards = read_namespace(fields, default=None)
        fields.no_others()
        raise_if_invalid(faults)
        there = Namespace.objects.for_tenant(tenant_id).filter(name=name).exists()
        with transaction.atomic():
            namespace = declare_namespace(tenant_id, name, num_shards)
            if not there:
                self.note("namespace-create", tenant_id, tenant_id, name=name, shards=namespace.num_shards)
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
        "createdAt": format_instant(namespace.created_at),
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
        name, scopes, expires_at = read_key(fields)
        fields.no_others()
        raise_if_invalid(faults)
        self.grant_no_more_than_own(scopes)
        with transaction.atomic():
            key, text = create_key(tenant_id, scopes, name=name, expires_at=expires_at)
            self.note_key("key-create", key)
            key.refresh_from_db()
        return reply({**show_key(key), "key": text}, 201)


class RotateKey(AdminView):
    @described(
        "rotateApiKey",
        "tenants",
        takes=shapes.RotationSerializer,
        gives=shapes.NewKeySerializer,
        status=201,
        about="A successor with the same rights. The old key ends after the overlap. A key is rotated once: when the "
        "answer was lost, the 409 `already_rotated` names the successor, which can be rotated in its turn.",
    )
    def post(self, request: Request, tenant_id: uuid.UUID, key_id: str) -> HttpResponse:
        key = get_key(tenant_id, key_id)
        require_rotatable(key)
        self.grant_no_more_than_own(key.scopes)
        fields, faults = self.read_fields()
        overlap = read_overlap(fields)
        fields.no_others()
        raise_if_invalid(faults)
        with transaction.atomic():
            successor, text = rotate_key(key, overlap)
            self.note_key("key-rotate", successor, replaces=key_id, overlap=str(overlap))
            successor.refresh_from_db()
        return reply({**show_key(successor), "key": text}, 201)


class RevokeKey(AdminView):
    @described("revokeApiKey", "tenants", status=204, about="End a key now.")
    def post(self, request: Request, tenant_id: uuid.UUID, key_id: str) -> HttpResponse:
        key = get_key(tenant_id, key_id)
        with transaction.atomic():
            if revoke_key(key_id):
                self.note("key-revoke", tenant_id, key_id, name=key.name)
        return no_content()


def show_key(key: ApiKey) -> dict[str, Any]:
    return {
        "keyId": key.key_id,
        "name": key.name,
        "scopes": key.scopes,
        "createdAt": format_instant(key.created_at),
        "expiresAt": format_instant(key.expires_at),
        "revokedAt": format_instant(key.revoked_at),
        "lastUsedAt": format_instant(key.last_used_at),
        "successor": key.successor_id,
    }

"""Tenants (for operators), and their namespaces and API keys (for whoever has the scope `admin`)."""

from __future__ import annotations

import uuid
from collections.abc import Iterable

from django.db import IntegrityError, transaction
from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request
from rest_framework.response import Response

from eventservice.api.authentication import Scope
from eventservice.api.formats import format_instant
from eventservice.api.openapi import describe
from eventservice.api.permissions import HasScope, IsAuthenticated, IsInOwnTenant, IsOperator
from eventservice.api.problems import Problem
from eventservice.api.schema.queries import PageQuery
from eventservice.api.schema.tenants import (
    ApiKeyInputSchema,
    ApiKeyPageSchema,
    ApiKeySchema,
    NamespaceInputSchema,
    NamespacePageSchema,
    NamespaceSchema,
    NewApiKeySchema,
    RotationSchema,
    TenantInputSchema,
    TenantOrReceiptSchema,
    TenantPageSchema,
    TenantReceiptSchema,
    TenantSchema,
    TenantSettingsSchema,
    TenantUsageSchema,
    build_name_conflict,
)
from eventservice.api.views import ApiView, build_no_content
from eventservice.kernel.errors import NotFound
from eventservice.kernel.ids import new_id
from eventservice.operators.audit_log import describe_changes, record_action
from eventservice.tenants.directory import create_tenant
from eventservice.tenants.keys import create_key, get_key, require_rotatable, revoke_key, rotate_key
from eventservice.tenants.models import ApiKey, Namespace, Tenant
from orchestration.feeder.declarations import update_tenant
from orchestration.feeder.namespaces import declare_namespace
from orchestration.statistics.usage import read_usage

MAX_BODY_BYTES = 64 * 1024

TAG = "tenants"


class AdminView(ApiView):
    """The base of the views of tenants. Reading needs the scope `read`, everything else `admin`."""

    @property
    def max_body_bytes(self) -> int:
        return MAX_BODY_BYTES

    def get_required_scope(self, method: str) -> Scope:
        return Scope.READ if method in SAFE_METHODS else Scope.ADMIN

    @property
    def rate_policy(self) -> str:
        """Count against a separate limit, so that a leaked key that sends too many requests can be revoked."""
        return "administration" if Scope.ADMIN in self.principal.scopes else super().rate_policy

    def require_own_scopes(self, scopes: Iterable[str]) -> None:
        """Raise Problem if a new key would have scopes that the key of this request does not have."""
        if missing := set(scopes) - self.principal.scopes:
            names = ", ".join(sorted(missing))
            raise Problem(403, "scope_missing", f"A key cannot grant scopes that it does not have: {names}.")

    def record(self, action: str, tenant_id: uuid.UUID, subject: object, **detail: object) -> None:
        """Record an action in the audit log, in the transaction of the action."""
        record_action(self.principal, action, tenant_id=tenant_id, subject=subject, **detail)

    def record_key(self, action: str, key: ApiKey, **detail: object) -> None:
        about = {"name": key.name, "scopes": key.scopes, "expires": format_instant(key.expires_at), **detail}
        record_action(self.principal, action, tenant_id=key.tenant_id, subject=key.key_id, **about)


# --- tenants ------------------------------------------------------------------------------------------------------


class TenantsView(AdminView):
    list_id, ordering = "tenants", "name"

    def get_permissions(self) -> list[BasePermission]:
        only_operators = [IsOperator()] if self.request.method == "POST" else []
        return [IsAuthenticated(), *only_operators, HasScope()]

    @describe(
        "listTenants",
        TAG,
        "List the tenants in which the key is valid, by name: all of them for operators, one for other keys.",
        query=PageQuery,
        response=TenantPageSchema,
    )
    def get(self, request: Request) -> Response:
        own = self.principal.tenant_id
        visible = Tenant.objects.all() if own is None else Tenant.objects.filter(pk=own)
        tenants = self.paginate_queryset(visible) or []
        return self.get_paginated_response([TenantSchema.from_tenant(tenant) for tenant in tenants])

    @describe(
        "createTenant",
        TAG,
        "Create a tenant. For operators.",
        request=TenantInputSchema,
        response=TenantSchema,
        status=201,
        response_headers=["Location"],
    )
    def post(self, request: Request) -> Response:
        given, tenant_id = self.parse_body(TenantInputSchema), new_id()
        try:
            with transaction.atomic():
                tenant = create_tenant(given.name, tenant_id=tenant_id, **given.settings)
                self.record("tenant-create", tenant_id, tenant_id, name=given.name)
        except IntegrityError:
            raise build_name_conflict(given.name) from None
        headers = {"Location": f"{request.path}/{tenant.tenant_id}"}
        return Response(TenantSchema.from_tenant(tenant), 201, headers=headers)


class TenantView(AdminView):
    def get_permissions(self) -> list[BasePermission]:
        only_operators = [IsOperator()] if self.request.method == "PATCH" else []
        return [IsAuthenticated(), IsInOwnTenant(), *only_operators, HasScope()]

    @describe("getTenant", TAG, "Get a tenant.", response=TenantSchema)
    def get(self, request: Request, tenant_id: uuid.UUID) -> Response:
        return Response(TenantSchema.from_tenant(Tenant.objects.get(pk=tenant_id)))

    @describe(
        "changeTenant",
        TAG,
        "Change the settings of a tenant. Members that are left out stay as they are. For operators.",
        request=TenantSettingsSchema,
        response=TenantOrReceiptSchema,
        body_required=False,
    )
    def patch(self, request: Request, tenant_id: uuid.UUID) -> Response:
        changes = self.parse_optional_body(TenantSettingsSchema).changes()
        with transaction.atomic():
            actions = _list_actions(Tenant.objects.select_for_update().get(pk=tenant_id), changes)
            tenant = update_tenant(tenant_id, **changes)
            for action, detail in actions.items():
                self.record(action, tenant_id, tenant_id, **detail)
        shown = (
            TenantSchema.from_tenant(tenant) if self.may_read else TenantReceiptSchema(tenant_id=tenant_id)
        )
        return Response(shown)


class TenantUsageView(AdminView):
    @describe(
        "getTenantUsage",
        TAG,
        "Get what a tenant uses of its limits: calls in flight, pending calls and stored bytes. The counts may be some "
        "seconds old.",
        response=TenantUsageSchema,
    )
    def get(self, request: Request, tenant_id: uuid.UUID) -> Response:
        return Response(TenantUsageSchema.from_usage(read_usage(Tenant.objects.get(pk=tenant_id))))


def _list_actions(tenant: Tenant, changes: dict[str, object]) -> dict[str, dict[str, object]]:
    """Return what the audit log says of these changes, in the terms of the console. A secret is never in it."""
    actions: dict[str, dict[str, object]] = {}
    different = {column: value for column, value in changes.items() if getattr(tenant, column) != value}
    secret = different.pop("signing_secret", None)
    if secret is not None:
        set_or_rotate = "tenant-secret-rotate" if tenant.signing_secret else "tenant-secret-set"
        actions[set_or_rotate if secret else "tenant-secret-clear"] = {}
    if "active" in different:
        actions["tenant-activate" if different.pop("active") else "tenant-deactivate"] = {}
    if different:
        actions["tenant-change"] = describe_changes(tenant, different)
    return actions


# --- namespaces ---------------------------------------------------------------------------------------------------


class NamespacesView(AdminView):
    ordering = "name"

    @property
    def list_id(self) -> str:
        return f"namespaces {self.kwargs['tenant_id']}"

    @describe(
        "listNamespaces",
        TAG,
        "List the namespaces of a tenant by name.",
        query=PageQuery,
        response=NamespacePageSchema,
    )
    def get(self, request: Request, tenant_id: uuid.UUID) -> Response:
        namespaces = self.paginate_queryset(Namespace.objects.for_tenant(tenant_id)) or []
        return self.get_paginated_response(
            [NamespaceSchema.from_namespace(namespace) for namespace in namespaces]
        )

    @describe(
        "declareNamespace",
        TAG,
        "Create a namespace if it does not exist. Its number of shards is given by a named `size` or by `numShards`. "
        "Neither that nor its timer store can be changed later.",
        request=NamespaceInputSchema,
        response=NamespaceSchema,
        status=(200, 201),
        response_headers=["Location"],
    )
    def post(self, request: Request, tenant_id: uuid.UUID) -> Response:
        given = self.parse_body(NamespaceInputSchema)

        def record(namespace: Namespace) -> None:
            self.record("namespace-create", tenant_id, tenant_id, **namespace.audit_detail)

        namespace, is_new = declare_namespace(tenant_id, given.name, given.shards, given.store, record=record)
        headers = {"Location": f"{request.path}/{given.name}"}
        return Response(NamespaceSchema.from_namespace(namespace), 201 if is_new else 200, headers=headers)


class NamespaceView(AdminView):
    @describe("getNamespace", TAG, "Get a namespace.", response=NamespaceSchema)
    def get(self, request: Request, tenant_id: uuid.UUID, name: str) -> Response:
        namespace = Namespace.objects.for_tenant(tenant_id).filter(name=name).first()
        if namespace is None:
            raise NotFound("namespace")
        return Response(NamespaceSchema.from_namespace(namespace))


# --- API keys -----------------------------------------------------------------------------------------------------


class ApiKeysView(AdminView):
    ordering = "key_id"

    @property
    def list_id(self) -> str:
        return f"api-keys {self.kwargs['tenant_id']}"

    @describe(
        "listApiKeys",
        TAG,
        "List the API keys of a tenant, without their secrets.",
        query=PageQuery,
        response=ApiKeyPageSchema,
    )
    def get(self, request: Request, tenant_id: uuid.UUID) -> Response:
        keys = self.paginate_queryset(ApiKey.objects.for_tenant(tenant_id)) or []
        return self.get_paginated_response([ApiKeySchema.from_key(key) for key in keys])

    @describe(
        "createApiKey",
        TAG,
        "Create an API key. Only this response shows it.",
        request=ApiKeyInputSchema,
        response=NewApiKeySchema,
        status=201,
    )
    def post(self, request: Request, tenant_id: uuid.UUID) -> Response:
        given = self.parse_body(ApiKeyInputSchema)
        self.require_own_scopes(given.scope_names)
        with transaction.atomic():
            key, text = create_key(
                tenant_id, given.scope_names, name=given.name or "", expires_at=given.expires_at
            )
            self.record_key("key-create", key)
            key.refresh_from_db()
        return Response(NewApiKeySchema.from_new_key(key, text), 201)


class RotateKeyView(AdminView):
    @describe(
        "rotateApiKey",
        TAG,
        "Replace an API key by a new one with the same scopes. The old key expires after the overlap. A key can be "
        "rotated once. If the response was lost, the 409 `already_rotated` of a repeat names the new key, which can be "
        "rotated in turn.",
        request=RotationSchema,
        response=NewApiKeySchema,
        status=201,
        body_required=False,
    )
    def post(self, request: Request, tenant_id: uuid.UUID, key_id: str) -> Response:
        key = get_key(tenant_id, key_id)
        require_rotatable(key)
        self.require_own_scopes(key.scopes)
        overlap = self.parse_optional_body(RotationSchema).overlap_time
        with transaction.atomic():
            successor, text = rotate_key(key, overlap)
            self.record_key("key-rotate", successor, replaces=key_id, overlap=str(overlap))
            successor.refresh_from_db()
        return Response(NewApiKeySchema.from_new_key(successor, text), 201)


class RevokeKeyView(AdminView):
    @describe("revokeApiKey", TAG, "Revoke an API key. It is refused within a second.", status=204)
    def post(self, request: Request, tenant_id: uuid.UUID, key_id: str) -> Response:
        key = get_key(tenant_id, key_id)
        with transaction.atomic():
            if revoke_key(key_id):
                self.record("key-revoke", tenant_id, key_id, name=key.name)
        return build_no_content()

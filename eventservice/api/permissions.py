"""Permissions: a tenant's key acts in its own tenant, operators in every tenant, each with the scopes of the key.

All of these classes are permissions of views that subclass ApiView.
"""

from __future__ import annotations

from typing import Any

from rest_framework.exceptions import NotAuthenticated
from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from eventservice.kernel.errors import NotFound

SESSION_IS_READ_ONLY = (
    "A session may only read: use an API key, or the console, which records what operators do."
)


class IsAuthenticated(BasePermission):
    def has_permission(self, request: Request, view: Any) -> bool:
        if not request.user.is_authenticated:
            raise NotAuthenticated("Send an API key: Authorization: Bearer es_….")
        return True


class IsInOwnTenant(BasePermission):
    """Raises NotFound for other tenants, so that they cannot be told from tenants that do not exist."""

    def has_permission(self, request: Request, view: Any) -> bool:
        if "tenant_id" in view.kwargs:
            if view.principal.tenant_id not in (None, view.kwargs["tenant_id"]):
                raise NotFound("tenant")
            _ = view.tenant  # raises NotFound
        return True


class IsOperator(BasePermission):
    message = "Only operators may do this."
    code = "operators_only"

    def has_permission(self, request: Request, view: Any) -> bool:
        return bool(view.principal.is_operator)


class HasScope(BasePermission):
    message = ""
    code = "scope_missing"

    def has_permission(self, request: Request, view: Any) -> bool:
        scope = view.get_required_scope(request.method or "")
        if scope in view.principal.scopes:
            return True
        if view.principal.by_session:
            self.message, self.code = SESSION_IS_READ_ONLY, "session_reads_only"
        else:
            self.message = f"This needs the scope {scope.value!r}, which the key does not have."
        return False

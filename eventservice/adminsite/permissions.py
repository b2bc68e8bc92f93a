"""Permissions in the admin follow the roles of the console. Django's own permissions are not used."""

from __future__ import annotations

from django.db.models import Model
from django.http import HttpRequest

from eventservice.operators.roles import Role, role_of


def has_role(request: HttpRequest, needed: Role | None) -> bool:
    """Return whether the user has this role or a higher one; nobody has None.

    The role is stored with the request, since the admin asks about a hundred times per page.
    """
    if not hasattr(request, "operator_role"):
        request.operator_role = role_of(request.user)  # type: ignore[attr-defined]
    role: Role | None = request.operator_role  # type: ignore[attr-defined]
    return role is not None and needed is not None and role >= needed


class RolePermissions:
    """Mixin for every ModelAdmin of the site."""

    view_role: Role = Role.VIEWER
    edit_role: Role | None = None  # nobody

    def has_module_permission(self, request: HttpRequest) -> bool:
        return has_role(request, self.view_role)

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return has_role(request, self.view_role)

    def has_add_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return has_role(request, self.edit_role)

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return has_role(request, self.edit_role)

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return has_role(request, self.edit_role)

    # For actions (eventservice.adminsite.actions).

    def has_operate_permission(self, request: HttpRequest) -> bool:
        return has_role(request, Role.OPERATOR)

    def has_administer_permission(self, request: HttpRequest) -> bool:
        return has_role(request, Role.ADMIN)

"""Who may do what in the admin: by the console's roles. Django's own permissions are not asked."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest

from eventservice.operators.roles import Role, role_of


def has_role(request: HttpRequest, needed: Role | None) -> bool:
    """Whether the operator has this role or a higher one; what needs None, nobody may.

    The admin asks some hundred times for each page: the answer is kept with the request.
    """
    if not hasattr(request, "operator_role"):
        request.operator_role = role_of(request.user)  # type: ignore[attr-defined]
    role: Role | None = request.operator_role  # type: ignore[attr-defined]
    return role is not None and needed is not None and role >= needed


class RolePermissions:
    """For every ModelAdmin and inline of the site."""

    view_role: Role = Role.VIEWER
    edit_role: Role | None = None  # nobody, whatever the role

    def has_module_permission(self, request: HttpRequest) -> bool:
        return has_role(request, self.view_role)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return has_role(request, self.view_role)

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return has_role(request, self.edit_role)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return has_role(request, self.edit_role)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return has_role(request, self.edit_role)

    # Of actions (eventservice.adminsite.actions).

    def has_operate_permission(self, request: HttpRequest) -> bool:
        return has_role(request, Role.OPERATOR)

    def has_administer_permission(self, request: HttpRequest) -> bool:
        return has_role(request, Role.ADMIN)

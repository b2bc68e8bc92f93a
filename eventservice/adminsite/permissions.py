"""Who may do what in the admin: by the console's roles. Django's own permissions are not asked."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest

from eventservice.operators.roles import Role, role_of


def holds(request: HttpRequest, needed: Role | None) -> bool:
    """Whether the operator has this role or a higher one; what needs None, nobody may.

    The admin asks some hundred times for each page: the answer is kept with the request.
    """
    if not hasattr(request, "operator_role"):
        request.operator_role = role_of(request.user)  # type: ignore[attr-defined]
    role: Role | None = request.operator_role  # type: ignore[attr-defined]
    return role is not None and needed is not None and role >= needed


class ByRole:
    """For every ModelAdmin and inline of the site."""

    sees: Role = Role.VIEWER
    edits: Role | None = None  # nobody, whatever the role

    def has_module_permission(self, request: HttpRequest) -> bool:
        return holds(request, self.sees)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return holds(request, self.sees)

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return holds(request, self.edits)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return holds(request, self.edits)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return holds(request, self.edits)

    # Of actions (eventservice.adminsite.actions).

    def has_operate_permission(self, request: HttpRequest) -> bool:
        return holds(request, Role.OPERATOR)

    def has_administer_permission(self, request: HttpRequest) -> bool:
        return holds(request, Role.ADMIN)

"""Users and groups, the audit log, Django's history, and the roles of the cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.auth import admin as auth_admin
from django.contrib.auth.models import Group, User
from django.db import transaction
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest, HttpResponse

from eventservice.adminsite.columns import json_column, list_time_column, tenant_column, time_column
from eventservice.adminsite.model_admin import LargeTableAdmin, ReadOnlyAdmin, RoleAdmin
from eventservice.operators.models import OperatorAction
from eventservice.operators.roles import BY_GROUP, Role
from eventservice.runtime.models import Slot

admin.site.unregister([User, Group])
DjangosUserAdmin: Any = auth_admin.UserAdmin


@admin.register(User)
class UserAdmin(RoleAdmin[User], DjangosUserAdmin):  # type: ignore[misc]
    view_role = edit_role = Role.ADMIN
    audited_fields = ("username", "is_active", "is_staff", "is_superuser", "groups")
    list_display = ("username", "role", "is_active", "is_staff", "is_superuser", "last_login")
    list_filter = ("is_active", "is_staff", "is_superuser", "groups")
    fieldsets = (
        (None, {"fields": ("username", "password", "first_name", "last_name", "email")}),
        (
            "Permissions",
            {
                "fields": ("is_active", "is_staff", "groups", "is_superuser"),
                "description": "Operators need staff status. Their role is their highest group: viewer, operator or admin. "
                "Staff without a group are viewers; superusers are admins.",
            },
        ),
        ("Dates", {"fields": ("last_login", "date_joined")}),
    )
    add_fieldsets = (
        (None, {"fields": ("username", "usable_password", "password1", "password2", "is_staff", "groups")}),
    )
    filter_horizontal = ("groups",)
    readonly_fields = ("last_login", "date_joined")

    def get_audit_subject(self, row: User) -> str:
        return f"user {row.username}"

    def get_queryset(self, request: HttpRequest) -> QuerySet[User]:
        users: QuerySet[User] = super().get_queryset(request)
        return users.prefetch_related("groups")

    @admin.display(description="role")
    def role(self, user: User) -> str:
        if not (user.is_active and user.is_staff):
            return "none"
        if user.is_superuser:
            return Role.ADMIN.group
        roles = [BY_GROUP[group.name] for group in user.groups.all() if group.name in BY_GROUP]
        return max(roles, default=Role.VIEWER).group

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return super().has_delete_permission(request, obj) and obj != request.user

    def get_readonly_fields(self, request: HttpRequest, obj: User | None = None) -> Sequence[str]:
        """Make one's own permissions read-only: otherwise the last admin could lock everybody out."""
        own = ("is_active", "is_staff", "groups", "is_superuser") if obj == request.user else ()
        return (*super().get_readonly_fields(request, obj), *own)

    def user_change_password(self, request: HttpRequest, id: str, form_url: str = "") -> HttpResponse:
        with transaction.atomic():
            response: HttpResponse = super().user_change_password(request, id, form_url)
            changed = request.method == "POST" and response.status_code == 302
            if changed and (user := self.get_object(request, id)):
                self.record(request, "password", user)
        return response


@admin.register(Group)
class GroupAdmin(RoleAdmin[Group]):
    """Groups have a name only, since Django's permissions are not used. The groups of the roles are fixed."""

    view_role = edit_role = Role.ADMIN
    audited_fields = ("name",)
    fields = ("name",)
    search_fields = ("name",)

    def get_audit_subject(self, row: Group) -> str:
        return f"group {row.name}"

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return super().has_change_permission(request, obj) and not _is_role(obj)

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return super().has_delete_permission(request, obj) and not _is_role(obj)


def _is_role(group: Model | None) -> bool:
    """Return whether a group is one of the roles, which are known by their names."""
    return isinstance(group, Group) and group.name in BY_GROUP


@admin.register(LogEntry)
class LogEntryAdmin(ReadOnlyAdmin[LogEntry]):
    """Django's history of changes in the admin, which includes users."""

    view_role = Role.ADMIN
    list_display = ("action_time", "user", "content_type", "object_repr", "action_flag", "get_change_message")
    list_display_links = ("action_time",)
    list_select_related = ("user", "content_type")
    sortable_by = ()
    ordering = ("-id",)
    fields = ("action_time", "user", "content_type", "object_id", "object_repr", "get_change_message")


@admin.register(OperatorAction)
class OperatorActionAdmin(LargeTableAdmin[OperatorAction]):
    list_display = ("id", list_time_column("at"), "user", "action", tenant_column, "subject")
    fields = ("id", time_column("at"), "user", "action", tenant_column, "subject", json_column("detail"))
    ordering = ("-id",)
    search_help_text = "The complete subject: the id of a call, a key or a tenant, or the number of an event."

    def build_search(self, request: HttpRequest, text: str) -> Q:
        return Q(subject=text)


@admin.register(Slot)
class SlotAdmin(ReadOnlyAdmin[Slot]):
    list_display = ("name", "owner_id", time_column("taken_at"), time_column("lease_until"), "ticket")
    fields = list_display
    ordering = ("name",)
    search_fields = ("name",)


# Not registered: django.contrib.sessions' Session (a session's key opens it), django-q's Task (it is Success and
# Failure), and Permission and ContentType, which are not used.

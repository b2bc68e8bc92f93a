"""The admin site: roles and sign-in of the console, and models with composite primary keys."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from django.contrib import admin
from django.contrib.admin.exceptions import AlreadyRegistered
from django.contrib.auth.views import redirect_to_login
from django.db import models
from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from eventservice.adminsite.model_admin import ReadOnlyAdmin, RoleAdmin
from eventservice.adminsite.permissions import has_role
from eventservice.operators.roles import Role

M = TypeVar("M", bound=models.Model)


class ConsoleSite(admin.AdminSite):
    site_header = "Event Service"
    site_title = "Event Service"
    index_title = "Administration"
    empty_value_display = "–"
    # Tables need the width.
    enable_nav_sidebar = False

    def __init__(self, name: str = "admin") -> None:
        super().__init__(name)
        # Rows are deleted one by one: the confirmation lists what is deleted with each.
        self.disable_action("delete_selected")

    def register(
        self,
        model_or_iterable: type[M] | Iterable[type[M]],
        admin_class: type[admin.ModelAdmin[M]] | None = None,
        **options: object,
    ) -> None:
        """Register models, also those with composite keys. Third-party admins become read-only and follow the roles."""
        made = admin_class or ReadOnlyAdmin
        if not issubclass(made, RoleAdmin):
            made = type(
                made.__name__, (ReadOnlyAdmin, made), {"actions": None, "__module__": made.__module__}
            )
        if isinstance(model_or_iterable, type):
            model_or_iterable = [model_or_iterable]
        for model in model_or_iterable:
            if not model._meta.is_composite_pk:
                super().register(model, made, **options)
            elif self.is_registered(model):
                raise AlreadyRegistered(f"The model {model.__name__} is already registered.")
            else:
                self._registry[model] = made(model, self)

    def has_permission(self, request: HttpRequest) -> bool:
        return has_role(request, Role.VIEWER)

    def login(self, request: HttpRequest, extra_context: dict[str, object] | None = None) -> HttpResponse:
        """Redirect to the console's sign-in page, which leads back here."""
        wanted = request.GET.get("next") or reverse("admin:index")
        return redirect_to_login(wanted, reverse("console:login"))

    def logout(self, request: HttpRequest, extra_context: dict[str, object] | None = None) -> Any:
        from eventservice.console.session import SignOut

        return SignOut.as_view()(request)

"""Django's admin as a part of the console: its roles, its login, and models with composite keys."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.contrib.admin import AdminSite
from django.contrib.admin.exceptions import AlreadyRegistered
from django.contrib.auth.views import redirect_to_login
from django.db import models
from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from eventservice.adminsite.model_admin import ReadOnlyAdmin, RoleAdmin
from eventservice.adminsite.permissions import has_role
from eventservice.operators.roles import Role


class ConsoleSite(AdminSite):
    site_header = "Event Service"
    site_title = "Event Service"
    index_title = "Administration"
    empty_value_display = "–"
    # Tables are wide.
    enable_nav_sidebar = False

    def __init__(self, name: str = "admin") -> None:
        super().__init__(name)
        # Rows are deleted one by one, where they may be at all: the page of each says what goes with it.
        self.disable_action("delete_selected")

    def register(
        self,
        model_or_iterable: type[models.Model] | Iterable[type[models.Model]],
        admin_class: Any = None,
        **options: Any,
    ) -> None:
        """Also of models with a composite key. What is not ours is mixed with `ReadOnly`: only roles give rights."""
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

    def login(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """The console's, which brings the operator back here."""
        wanted = request.GET.get("next") or reverse("admin:index")
        return redirect_to_login(wanted, reverse("console:login"))

    def logout(self, request: HttpRequest, extra_context: Any = None) -> Any:
        from eventservice.console.session import SignOut

        return SignOut.as_view()(request)

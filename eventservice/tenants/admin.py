"""Tenants and namespaces, which can be edited, API keys, which only the console creates and shows once, and refusals."""

from __future__ import annotations

from typing import Any

from django import forms
from django.conf import settings
from django.contrib import admin
from django.core.exceptions import ValidationError
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse

from eventservice.adminsite.actions import RowAction
from eventservice.adminsite.change_lists import AnyTenantFilter, ChoiceFilter
from eventservice.adminsite.columns import Column, column, list_time_column, time_column
from eventservice.adminsite.forms import SchemaModelForm
from eventservice.adminsite.model_admin import RoleAdmin
from eventservice.console.base.edit_token import EditConflict, compute_edit_token, require_unchanged
from eventservice.console.base.forms import Lines, WholeNumber
from eventservice.kernel.errors import Conflict
from eventservice.operators.roles import Role
from eventservice.tenants.directory import create_tenant
from eventservice.tenants.keys import revoke_key
from eventservice.tenants.models import DEFAULT_SHARDS, ApiKey, LimitRefusal, Namespace, NamespaceSize, Tenant
from orchestration.feeder.declarations import update_tenant
from orchestration.feeder.namespaces import declare_namespace

SETTINGS = (
    "active", "max_in_flight", "max_pending", "requests_per_minute", "bytes_per_minute", "max_stored_bytes",
    "allowed_hosts", "secret_headers",
)  # fmt: skip

KNOWN = (
    column("signs its requests", lambda tenant: "yes" if tenant.signing_secret else "no"),
    column("stored bytes", lambda tenant: tenant.stored_bytes),
    column("id", lambda tenant: tenant.pk),
    time_column("created_at"),
)


class TenantForm(SchemaModelForm):
    schema = "eventservice.api.schema.tenants.TenantSettingsSchema"
    signing_secret = forms.CharField(
        required=False,
        widget=forms.PasswordInput(attrs={"size": 60, "autocomplete": "off"}),
        label="New signing secret",
        help_text="whsec_ and the base64 of 24 to 96 random bytes. Leave empty to keep the current one, which is never shown.",
    )
    allowed_hosts = Lines(
        required=False, help_text="One per line, without scheme, port or *. Leave empty to allow every host."
    )
    secret_headers = Lines(
        required=False, help_text="One per line, in addition to the built-in ones; * stands for all headers."
    )
    edit_token = forms.CharField(required=False, widget=forms.HiddenInput)

    class Meta:
        model = Tenant
        fields = ("name", *SETTINGS, "signing_secret")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.initial["signing_secret"] = ""
        if self.instance._state.adding:
            del self.fields["edit_token"]
        else:
            self.initial["edit_token"] = compute_edit_token(self.instance, SETTINGS)

    def clean(self) -> dict[str, Any]:
        """Compare with the row as it is now, and lock it until this form has been saved."""
        entered = super().clean()
        if "edit_token" in self.fields:
            current = Tenant.objects.select_for_update().get(pk=self.instance.pk)
            try:
                require_unchanged(current, SETTINGS, entered.pop("edit_token", ""))
            except EditConflict:
                self._refuse(current, entered)
        return entered

    def _refuse(self, current: Tenant, entered: dict[str, Any]) -> None:
        """Raise a ValidationError with the current values. The form may then be saved over them."""
        self.data = self.data.copy()  # type: ignore[attr-defined]
        self.data["edit_token"] = compute_edit_token(current, SETTINGS)  # type: ignore[index]
        values = {name: getattr(current, name) for name in SETTINGS}
        differing = [
            f"{self[name].label}: {', '.join(value) or 'none' if isinstance(value, list) else value}"
            for name, value in values.items()
            if entered.get(name) != value
        ]
        raise ValidationError(
            "Not saved: somebody else changed this tenant after you opened this page. The current values are: "
            f"{'; '.join(differing) or 'those that you entered'}. Saving again replaces them."
        )


@admin.register(Tenant)
class TenantAdmin(RoleAdmin[Tenant]):
    edit_role = Role.ADMIN
    form = TenantForm
    audited_fields = ("name", *SETTINGS)
    list_display = (
        "name",
        "active",
        "max_in_flight",
        "max_pending",
        "requests_per_minute",
        list_time_column("created_at"),
    )
    list_filter = ("active",)
    search_fields = ("name", "=tenant_id")
    search_help_text = "Part of the name, or the complete id."
    ordering = ("name",)

    def get_fields(self, request: HttpRequest, obj: Tenant | None = None) -> tuple[str | Column, ...]:
        secret = ("signing_secret",) if self.has_change_permission(request) else ()
        token = ("edit_token",) if secret and obj else ()
        return ("name", *SETTINGS, *secret, *token, *(KNOWN if obj else ()))

    def get_readonly_fields(
        self, request: HttpRequest, obj: Tenant | None = None
    ) -> tuple[str | Column, ...]:
        return ("name", *KNOWN) if obj else ()

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Forbid deletion: a tenant that is no longer served is deactivated."""
        return False

    def save_model(self, request: HttpRequest, obj: Tenant, form: SchemaModelForm, change: bool) -> None:
        given = {name: form.cleaned_data[name] for name in form.changed_data}
        if not given.get("signing_secret"):
            given.pop("signing_secret", None)
        if change:
            update_tenant(obj.pk, **given)
            return
        create_tenant(given.pop("name"), tenant_id=obj.pk, **given)


class NamespaceForm(SchemaModelForm):
    schema = "eventservice.api.schema.tenants.NamespaceInputSchema"

    size = forms.TypedChoiceField(
        choices=[("", "another number"), *NamespaceSize.choices], required=False, coerce=str, empty_value=None
    )
    num_shards = WholeNumber(label="Another number of shards", empty_value=None)
    store = forms.TypedChoiceField(
        choices=lambda: [
            ("", "this service's database"),
            *((spec.name, spec.name) for spec in settings.TIMER_STORES),
        ],
        required=False,
        coerce=str,
        empty_value=None,
        label="Timer store",
    )

    class Meta:
        model = Namespace
        fields = ("tenant", "name", "num_shards", "store")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.initial.update({"size": NamespaceSize.SMALL, "num_shards": None})

    def clean(self) -> dict[str, Any]:
        entered = super().clean()
        if not self.errors:
            entered["num_shards"] = self.document.shards or DEFAULT_SHARDS
            entered["store"] = self.document.store or ""
        tenant, name = entered.get("tenant"), entered.get("name")
        if tenant and name and Namespace.objects.for_tenant(tenant.pk).filter(name=name).exists():
            raise ValidationError(f"{tenant.name} already has a namespace {name!r}.")
        return entered


SIZE = column("size", lambda namespace: namespace.size or "")


@admin.register(Namespace)
class NamespaceAdmin(RoleAdmin[Namespace]):
    """Namespaces can be created but not changed: timers are found by the number of shards and the store."""

    edit_role = Role.ADMIN
    form = NamespaceForm
    list_display = ("name", "tenant", SIZE, "num_shards", "store", time_column("created_at"))
    list_filter = (AnyTenantFilter,)
    list_select_related = ("tenant",)
    search_fields = ("name",)
    ordering = ("tenant__name", "name")
    raw_id_fields = ("tenant",)

    def get_fields(self, request: HttpRequest, obj: Namespace | None = None) -> tuple[str, ...]:
        store = ("store",) if obj or settings.TIMER_STORES else ()
        return ("tenant", "name", "size", "num_shards", *store)

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def get_audit_subject(self, row: Namespace) -> str:
        return str(row.tenant_id)

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, object] | None = None,
    ) -> HttpResponse:
        """Handle the form without Django's transaction around it: a timer store may be asked, which can take long."""
        return self._answer(
            request, lambda: self._changeform_view(request, object_id, form_url, extra_context)
        )

    def save_model(self, request: HttpRequest, obj: Namespace, form: SchemaModelForm, change: bool) -> None:
        def record(namespace: Namespace) -> None:
            self.record(request, "create", namespace, **namespace.audit_detail)

        declare_namespace(obj.tenant_id, obj.name, obj.num_shards, obj.store or None, record=record)

    def save_related(self, *args: object) -> None:
        """Do nothing: a namespace has no relations, and the entry in the audit log is written with it."""


class UsableFilter(ChoiceFilter):
    title = "revoked"
    parameter_name = "revoked"
    names = ("revoked",)
    values = (("no", "No"), ("yes", "Yes"))

    def apply(self, queryset: QuerySet[Model], chosen: str) -> QuerySet[Model]:
        return queryset.filter(revoked_at__isnull=chosen == "no")


def _revoke(request: HttpRequest, key: ApiKey) -> str:
    if not revoke_key(key.key_id):
        raise Conflict("key_revoked", "This key has already been revoked.")
    return "revoked"


OF = column("tenant", lambda key: key.tenant or "all (operator key)")
SCOPES = column("scopes", lambda key: ", ".join(key.scopes))


@admin.register(ApiKey)
class ApiKeyAdmin(RoleAdmin[ApiKey]):
    """API keys, of whose secrets only a hash is stored."""

    list_display = (
        "key_id", "name", OF, SCOPES, list_time_column("created_at"), list_time_column("expires_at"), list_time_column("revoked_at"), list_time_column("last_used_at"),
    )  # fmt: skip
    fields = (
        "key_id", "name", OF, SCOPES, time_column("created_at"), time_column("expires_at"), time_column("revoked_at"),
        time_column("last_used_at"),
    )  # fmt: skip
    list_filter = (AnyTenantFilter, UsableFilter)
    list_select_related = ("tenant",)
    search_fields = ("key_id", "name")
    ordering = ("-created_at",)
    actions = [
        RowAction(
            "key-revoke",
            "Revoke",
            _revoke,
            question="Requests with these keys are refused from now on. This cannot be undone.",
            permission="administer",
        )
    ]


@admin.register(LimitRefusal)
class LimitRefusalAdmin(RoleAdmin[LimitRefusal]):
    """The last refusals because of each limit of a tenant."""

    list_display = ("tenant", "code", "count", list_time_column("since"), list_time_column("last_at"))
    fields = ("tenant", "code", "count", time_column("since"), time_column("last_at"))
    list_filter = (AnyTenantFilter,)
    list_select_related = ("tenant",)
    search_fields = ("code",)
    ordering = ("-last_at",)

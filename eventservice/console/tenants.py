"""Tenants: limits, namespaces, signing secret, and whether they are active."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlencode

from django.conf import settings
from django.db import IntegrityError
from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from eventservice.api.problems import FieldError
from eventservice.api.schema.tenants import (
    NamespaceInputSchema,
    TenantInputSchema,
    TenantSettingsSchema,
    build_name_conflict,
)
from eventservice.console.base.confirm import ConfirmView
from eventservice.console.base.edit_token import EditConflict, compute_edit_token, require_unchanged
from eventservice.console.base.forms import Lines, PlainText, SchemaForm, WholeNumber
from eventservice.console.base.query import Query
from eventservice.console.base.views import ConsoleView
from eventservice.db.bounded_count import MAX_COUNTED
from eventservice.db.now import db_now
from eventservice.kernel.errors import DomainError, NotFound
from eventservice.kernel.ids import new_id
from eventservice.kernel.sharding import MAX_SHARDS
from eventservice.operators.audit_log import describe_changes, record_action
from eventservice.operators.formatting import format_share, format_size
from eventservice.operators.roles import Role
from eventservice.tenants.directory import (
    create_tenant,
    get_tenant,
    list_namespaces,
    list_tenants,
)
from eventservice.tenants.keys import count_usable_keys, list_keys_with_state
from eventservice.tenants.models import Namespace, NamespaceSize, Tenant
from eventservice.tenants.refusals import list_refusals
from orchestration.feeder.declarations import update_tenant
from orchestration.feeder.namespaces import declare_namespace
from orchestration.queries.calls import count_pending
from orchestration.states import Status
from orchestration.statistics.usage import MAX_COUNTED_CALLS, read_usage

PAGE_SIZE = 25
# The share of a limit from which its use is shown as a warning.
HIGH_USAGE = 0.9
# The columns that the form of the limits changes.
SETTINGS = [
    "max_in_flight", "max_pending", "requests_per_minute", "bytes_per_minute", "max_stored_bytes", "allowed_hosts",
    "secret_headers",
]  # fmt: skip


class LimitsForm(SchemaForm[TenantSettingsSchema]):
    schema: type[TenantSettingsSchema] = TenantSettingsSchema
    max_in_flight = WholeNumber()
    max_pending = WholeNumber()
    requests_per_minute = WholeNumber()
    bytes_per_minute = WholeNumber()
    max_stored_bytes = WholeNumber()
    allowed_hosts = Lines()
    secret_headers = Lines()

    @classmethod
    def for_tenant(cls, tenant: Tenant) -> Self:
        """Return a form that shows the settings of a tenant."""
        return cls(initial={name: getattr(tenant, name) for name in SETTINGS})


class TenantCreationForm(LimitsForm):
    schema = TenantInputSchema
    document: TenantInputSchema
    name = PlainText()


class SecretForm(SchemaForm[TenantSettingsSchema]):
    schema = TenantSettingsSchema
    signing_secret = PlainText(required=True, error_messages={"required": "is required"})


class NamespaceCreationForm(SchemaForm[NamespaceInputSchema]):
    schema = NamespaceInputSchema
    name = PlainText()
    size = PlainText(empty_value=None)
    num_shards = WholeNumber(empty_value=None)
    store = PlainText(empty_value=None)


class TenantsPage(ConsoleView):
    nav = "tenants"
    template = "console/tenants/tenants.html"

    def get(self, request: HttpRequest) -> HttpResponse:
        errors: list[FieldError] = []
        after = (
            Query(request.GET, errors).text("after", max_length=64) or "" if request.GET.get("after") else ""
        )
        found = list_tenants(PAGE_SIZE + 1, after)
        keys = count_usable_keys([tenant.tenant_id for tenant in found[:PAGE_SIZE]])
        rows = [
            (tenant, count_pending(tenant.tenant_id, MAX_COUNTED + 1), keys.get(tenant.tenant_id, 0))
            for tenant in found[:PAGE_SIZE]
        ]
        more = len(found) > PAGE_SIZE
        return self.render({"rows": rows, "after": after, "next_after": rows[-1][0].name if more else None})


class CreateTenant(ConsoleView):
    nav = "tenants"
    read_role = write_role = Role.ADMIN
    template = "console/tenants/new.html"

    def get(self, request: HttpRequest) -> HttpResponse:
        return self.render({"form": TenantCreationForm.for_tenant(Tenant())})

    def post(self, request: HttpRequest) -> HttpResponse:
        form, tenant_id = TenantCreationForm(request.POST), new_id()
        if form.is_valid():
            name, settings = form.document.name, form.document.settings
            try:
                self.run_audited(
                    "tenant-create",
                    lambda: create_tenant(name, tenant_id=tenant_id, **settings),
                    tenant_id=tenant_id,
                    subject=tenant_id,
                    name=name,
                )
            except IntegrityError:
                form.add_domain_error(build_name_conflict(name))
            else:
                self.report_success(f"Tenant {name} created. Next, create a key for it.")
                return self.redirect_to("console:tenant", tenant_id)
        return self.render({"form": form}, status=400)


class TenantPage(ConsoleView):
    """The page of one tenant. Each of its forms posts to its own URL, which shows this page again if it is invalid."""

    nav = "tenants"
    template = "console/tenants/tenant.html"
    write_role = Role.ADMIN

    def show_tenant(
        self,
        tenant: Tenant,
        status: int = 200,
        *,
        edit_token: str | None = None,
        outdated: bool = False,
        **forms: SchemaForm[Any],
    ) -> HttpResponse:
        """Show the tenant. `forms` are those that were sent and not accepted, by their names in the template."""
        now = db_now()
        namespaces, stores = list_namespaces(tenant.tenant_id), [spec.name for spec in settings.TIMER_STORES]
        context = {
            "now": now,
            "tenant": tenant,
            # A form that is sent again after a mistake still refers to what it showed first.
            "edit_token": compute_edit_token(tenant, SETTINGS) if edit_token is None else edit_token,
            "outdated": outdated,
            "usage": _build_usage_rows(tenant),
            "refusals": list_refusals(tenant.tenant_id),
            "namespaces": namespaces,
            "max_shards": MAX_SHARDS,
            "sizes": NamespaceSize,
            "stores": stores,
            "shows_stores": bool(stores) or any(namespace.store for namespace in namespaces),
            "keys": list_keys_with_state(tenant.tenant_id, now),
            "limits_form": LimitsForm.for_tenant(tenant),
            "secret_form": SecretForm(),
            "namespace_form": NamespaceCreationForm(initial={"size": NamespaceSize.SMALL}),
            **forms,
        }
        return self.render(context, status=status)

    def get(self, request: HttpRequest, tenant_id: uuid.UUID) -> HttpResponse:
        return self.show_tenant(get_tenant(tenant_id))


@dataclass(frozen=True, slots=True)
class UsageRow:
    """The use of one limit of a tenant, in numbers and as a bar."""

    name: str
    used: int
    limit: int
    used_text: str
    limit_text: str
    href: str = ""

    @property
    def high(self) -> int:
        """The number from which the bar is colored."""
        return int(HIGH_USAGE * self.limit)

    @property
    def share(self) -> str:
        return format_share(self.used / self.limit) if self.limit else ""

    @property
    def is_high(self) -> bool:
        return self.used >= self.high


def _build_usage_rows(tenant: Tenant) -> list[UsageRow]:
    usage = read_usage(tenant)
    rows = []
    for name, status, used, limit in (
        ("In flight", Status.RUNNING, usage.in_flight, tenant.max_in_flight),
        ("Pending", Status.SCHEDULED, usage.pending, tenant.max_pending),
    ):
        more = used > MAX_COUNTED_CALLS
        text = f"more than {MAX_COUNTED_CALLS:,}" if more else f"{used:,}"
        query = urlencode({"tenant": str(tenant.tenant_id), "status": status.value})
        rows.append(UsageRow(name, used, limit, text, f"{limit:,}", f"{reverse('console:calls')}?{query}"))
    stored, max_stored = usage.stored_bytes, tenant.max_stored_bytes
    return [
        *rows,
        UsageRow("Stored", stored, max_stored, format_size(stored), format_size(max_stored)),
    ]


class TenantDetailsPage(TenantPage):
    http_method_names = ["get", "head", "options"]


class UpdateLimits(TenantPage):
    def post(self, request: HttpRequest, tenant_id: uuid.UUID) -> HttpResponse:
        tenant = get_tenant(tenant_id)
        form, edit_token = LimitsForm(request.POST), request.POST.get("shown", "")
        if not form.is_valid():
            return self.show_tenant(tenant, 400, edit_token=edit_token, limits_form=form)
        settings = form.document.changes()
        changed = {column: value for column, value in settings.items() if getattr(tenant, column) != value}
        message = "Settings saved. They take effect everywhere within 5 seconds."
        try:
            return _change(
                self,
                "tenant-change",
                tenant_id,
                changed,
                message,
                edit_token,
                **describe_changes(tenant, changed),
            )
        except EditConflict:
            return self.show_tenant(get_tenant(tenant_id), 409, outdated=True, limits_form=form)


class SetSecret(TenantPage):
    def post(self, request: HttpRequest, tenant_id: uuid.UUID) -> HttpResponse:
        tenant = get_tenant(tenant_id)
        form = SecretForm(request.POST)
        if not form.is_valid():
            return self.show_tenant(tenant, 400, secret_form=form)
        action = "tenant-secret-rotate" if tenant.signing_secret else "tenant-secret-set"
        message = "Signing secret saved. It takes effect everywhere within 5 seconds."
        # The secret must not appear in the audit log.
        return _change(self, action, tenant_id, form.document.changes(), message)


class ClearSecret(ConfirmView):
    nav = "tenants"
    read_role = write_role = Role.ADMIN

    def get(self, request: HttpRequest, tenant_id: uuid.UUID) -> HttpResponse:
        return self.render_confirmation(
            "Stop signing requests?",
            "Clear secret",
            back_to=reverse("console:tenant", args=[tenant_id]),
            text=f"Requests of {get_tenant(tenant_id).name} will no longer be signed, and receivers that verify signatures "
            "will reject them. The secret cannot be recovered.",
            danger=True,
        )

    def post(self, request: HttpRequest, tenant_id: uuid.UUID) -> HttpResponse:
        message = "Signing secret cleared. Requests are no longer signed."
        return _change(self, "tenant-secret-clear", tenant_id, {"signing_secret": ""}, message)


class ActivateTenant(ConsoleView):
    nav = "tenants"
    write_role = Role.ADMIN

    def post(self, request: HttpRequest, tenant_id: uuid.UUID) -> HttpResponse:
        message = "Tenant activated. Its keys are accepted again."
        return _change(self, "tenant-activate", tenant_id, {"active": True}, message)


class DeactivateTenant(ConfirmView):
    nav = "tenants"
    read_role = write_role = Role.ADMIN

    def get(self, request: HttpRequest, tenant_id: uuid.UUID) -> HttpResponse:
        tenant = get_tenant(tenant_id)
        keys = count_usable_keys([tenant_id]).get(tenant_id, 0)
        return self.render_confirmation(
            f"Deactivate {tenant.name}?",
            "Deactivate",
            back_to=reverse("console:tenant", args=[tenant_id]),
            text=f"Its keys ({keys} active) are refused within a second. Scheduled calls still run: cancel them in the "
            "list of calls if they must not. You can activate the tenant again later.",
            word=tenant.name,
            danger=True,
        )

    def post(self, request: HttpRequest, tenant_id: uuid.UUID) -> HttpResponse:
        self.require_typed_word(get_tenant(tenant_id).name)
        message = "Tenant deactivated. Its keys are refused."
        return _change(self, "tenant-deactivate", tenant_id, {"active": False}, message)


class CreateNamespace(TenantPage):
    def post(self, request: HttpRequest, tenant_id: uuid.UUID) -> HttpResponse:
        tenant = get_tenant(tenant_id)
        form = NamespaceCreationForm(request.POST)
        if form.is_valid():
            given = form.document
            try:
                namespace, is_new = declare_namespace(
                    tenant_id, given.name, given.shards, given.store, record=self._record
                )
            except DomainError as error:
                form.add_domain_error(error)
            else:
                outcome = "created" if is_new else "already exists"
                place = f" in {namespace.store}" if namespace.store else ""
                self.report_success(
                    f"Namespace {namespace.name} {outcome} with {namespace.num_shards} shards{place}."
                )
                return self.redirect_to("console:tenant", tenant_id)
        return self.show_tenant(tenant, 400, namespace_form=form)

    def _record(self, namespace: Namespace) -> None:
        tenant_id = namespace.tenant_id
        detail = namespace.audit_detail
        record_action(self.request.user, "namespace-create", tenant_id=tenant_id, subject=tenant_id, **detail)


def _change(
    page: ConsoleView,
    action: str,
    tenant_id: uuid.UUID,
    changes: Mapping[str, Any],
    message: str,
    edit_token: str | None = None,
    **detail: Any,
) -> HttpResponse:
    """Change a tenant, with an entry in the audit log if anything changes.

    `edit_token` is the token of what the form showed. If the tenant has changed since, raise EditConflict.
    """

    def change() -> bool:
        tenant = Tenant.objects.select_for_update().filter(pk=tenant_id).first()
        if tenant is None:
            raise NotFound("tenant")
        if all(getattr(tenant, column) == value for column, value in changes.items()):
            return False
        if edit_token is not None:
            require_unchanged(tenant, SETTINGS, edit_token)
        update_tenant(tenant_id, **changes)
        return True

    changed = page.run_audited(action, change, tenant_id=tenant_id, subject=tenant_id, changed=bool, **detail)
    page.report_success(message if changed else "Nothing to change.")
    return page.redirect_to("console:tenant", tenant_id)

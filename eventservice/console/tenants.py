"""Tenants: limits, namespaces, signing secret, and whether they are active."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from django.db import IntegrityError
from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from eventservice.api.problems import FieldError
from eventservice.api.schema.tenants import (
    NamespaceInputSchema,
    TenantInputSchema,
    TenantSettingsSchema,
    name_taken,
)
from eventservice.console.base.confirm import ConfirmView
from eventservice.console.base.edit_token import EditConflict, compute_edit_token, require_unchanged
from eventservice.console.base.forms import Form
from eventservice.console.base.query import Query
from eventservice.console.base.views import ConsoleView
from eventservice.db.bounded_count import MAX_COUNTED
from eventservice.db.now import db_now
from eventservice.kernel.errors import DomainError, NotFound
from eventservice.kernel.ids import new_id
from eventservice.kernel.sharding import MAX_SHARDS
from eventservice.operators.roles import Role
from eventservice.tenants.directory import (
    create_tenant,
    declare_namespace,
    get_tenant,
    list_namespaces,
    list_tenants,
    update_tenant,
)
from eventservice.tenants.keys import count_usable_keys, list_keys_with_state
from eventservice.tenants.models import DEFAULT_SHARDS, Tenant
from orchestration.queries.calls import count_pending

PAGE_SIZE = 25
# The fields of the settings form, and their columns.
NUMBERS = {
    "maxInFlight": "max_in_flight",
    "maxPending": "max_pending",
    "requestsPerMinute": "requests_per_minute",
}
LISTS = {"allowedHosts": "allowed_hosts", "secretHeaders": "secret_headers"}
SETTINGS = [*NUMBERS.values(), *LISTS.values()]


class TenantsPage(ConsoleView):
    nav = "tenants"
    template = "console/tenants/tenants.html"

    def get(self, request: HttpRequest) -> HttpResponse:
        faults: list[FieldError] = []
        after = Query(request.GET, faults).text("after", most=64) or "" if request.GET.get("after") else ""
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
        defaults = _settings(Tenant())
        return self.render({"given": defaults, "wrong": {}})

    def post(self, request: HttpRequest) -> HttpResponse:
        form = Form(request.POST, ["name"], NUMBERS, LISTS)
        given, tenant_id = form.parse(TenantInputSchema), new_id()
        if given is not None:
            name = given.name
            try:
                self.run_audited(
                    "tenant-create",
                    lambda: create_tenant(name, tenant_id=tenant_id, **given.settings),
                    tenant_id=tenant_id,
                    subject=tenant_id,
                    name=name,
                )
            except IntegrityError:
                form.add_error(name_taken(name))
            else:
                self.report_success(f"Tenant {name} created. Next, create a key for it.")
                return self.redirect_to("console:tenant", tenant_id)
        return self.render({"given": request.POST, "wrong": form.wrong}, status=400)


class TenantPage(ConsoleView):
    """The page of one tenant. Each of its forms posts to its own URL, which shows this page again if it is invalid."""

    nav = "tenants"
    template = "console/tenants/tenant.html"
    write_role = Role.ADMIN

    def show_tenant(
        self,
        tenant: Tenant,
        given: Mapping[str, Any] | None = None,
        status: int = 200,
        outdated: bool = False,
        **wrong: Any,
    ) -> HttpResponse:
        now = db_now()
        context = {
            "now": now,
            "tenant": tenant,
            "given": given or _settings(tenant),
            # A form that is sent again after a mistake still refers to what it showed first.
            "shown": given.get("shown", "")
            if given and not outdated
            else compute_edit_token(tenant, SETTINGS),
            "outdated": outdated,
            "pending": count_pending(tenant.tenant_id, MAX_COUNTED + 1),
            "namespaces": list_namespaces(tenant.tenant_id),
            "default_shards": DEFAULT_SHARDS,
            "max_shards": MAX_SHARDS,
            "keys": list_keys_with_state(tenant.tenant_id, now),
            "wrong": wrong.get("wrong", {}),
            "wrong_secret": wrong.get("wrong_secret", {}),
            "wrong_namespace": wrong.get("wrong_namespace", {}),
            "namespace": wrong.get("namespace", {}),
        }
        return self.render(context, status=status)

    def get(self, request: HttpRequest, tenant_id: uuid.UUID) -> HttpResponse:
        return self.show_tenant(get_tenant(tenant_id))


class TenantDetailsPage(TenantPage):
    http_method_names = ["get", "head", "options"]


class UpdateLimits(TenantPage):
    def post(self, request: HttpRequest, tenant_id: uuid.UUID) -> HttpResponse:
        tenant = get_tenant(tenant_id)
        form = Form(request.POST, numbers=NUMBERS, lines=LISTS)
        settings = form.parse(TenantSettingsSchema)
        if settings is None:
            return self.show_tenant(tenant, request.POST, 400, wrong=form.wrong)
        changed = {
            column: value for column, value in settings.changes().items() if getattr(tenant, column) != value
        }
        message = "Settings saved. They take effect everywhere within 5 seconds."
        try:
            return _change(
                self, "tenant-change", tenant_id, changed, message, request.POST.get("shown", ""), **changed
            )
        except EditConflict:
            return self.show_tenant(get_tenant(tenant_id), request.POST, 409, outdated=True)


class SetSecret(TenantPage):
    def post(self, request: HttpRequest, tenant_id: uuid.UUID) -> HttpResponse:
        tenant = get_tenant(tenant_id)
        form = Form(request.POST, ["signingSecret"])
        settings = form.parse(TenantSettingsSchema)
        if settings is not None and not settings.signing_secret:
            form.faults.append(FieldError("/signingSecret", "is required"))
        if settings is None or form.faults:
            return self.show_tenant(tenant, None, 400, wrong_secret=form.wrong)
        action = "tenant-secret-rotate" if tenant.signing_secret else "tenant-secret-set"
        message = "Signing secret saved. It takes effect everywhere within 5 seconds."
        # The secret must not appear in the audit log.
        return _change(self, action, tenant_id, settings.changes(), message)


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
        form = Form(request.POST, ["name"], ["numShards"])
        form.leave_out_empty("numShards")
        given = form.parse(NamespaceInputSchema)
        if given is not None:
            name, num_shards = given.name, given.num_shards or DEFAULT_SHARDS
            try:
                is_new = self.run_audited(
                    "namespace-create",
                    lambda: _declare(tenant_id, name, num_shards),
                    tenant_id=tenant_id,
                    subject=tenant_id,
                    changed=bool,
                    name=name,
                    shards=num_shards,
                )
            except DomainError as error:
                form.add_error(error)
            else:
                outcome = "created" if is_new else "already exists"
                self.report_success(f"Namespace {name} {outcome} with {num_shards} shards.")
                return self.redirect_to("console:tenant", tenant_id)
        return self.show_tenant(tenant, None, 400, wrong_namespace=form.wrong, namespace=request.POST)


def _declare(tenant_id: uuid.UUID, name: str, num_shards: int) -> bool:
    """Create a namespace. Return False if it already existed."""
    is_new = all(space.name != name for space in list_namespaces(tenant_id))
    declare_namespace(tenant_id, name, num_shards)
    return is_new


def _change(
    page: ConsoleView,
    action: str,
    tenant_id: uuid.UUID,
    changes: Mapping[str, Any],
    message: str,
    shown: str | None = None,
    **detail: Any,
) -> HttpResponse:
    """Change a tenant, with an entry in the audit log if anything changes.

    `shown` is the token of what the form showed. If the tenant has changed since, raise EditConflict.
    """

    def change() -> bool:
        tenant = Tenant.objects.select_for_update().filter(pk=tenant_id).first()
        if tenant is None:
            raise NotFound("tenant")
        if all(getattr(tenant, column) == value for column, value in changes.items()):
            return False
        if shown is not None:
            require_unchanged(tenant, SETTINGS, shown)
        update_tenant(tenant_id, **changes)
        return True

    changed = page.run_audited(action, change, tenant_id=tenant_id, subject=tenant_id, changed=bool, **detail)
    page.report_success(message if changed else "Nothing to change.")
    return page.redirect_to("console:tenant", tenant_id)


def _settings(tenant: Tenant) -> dict[str, Any]:
    """Return the settings as the form shows them."""
    given: dict[str, Any] = {name: getattr(tenant, column) for name, column in NUMBERS.items()}
    return given | {name: "\n".join(getattr(tenant, column)) for name, column in LISTS.items()}

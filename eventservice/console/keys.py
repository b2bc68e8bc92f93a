"""API keys of tenants and of operators: they are created and shown once, rotated and revoked."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from eventservice.api.formats import format_instant, parse_duration
from eventservice.api.schema.base import parse
from eventservice.api.schema.tenants import ApiKeyInputSchema, RotationSchema
from eventservice.console.base.confirm import ConfirmView
from eventservice.console.base.forms import Checkboxes, PlainText, SchemaForm
from eventservice.console.base.time_zone import format_instant as format_instant_in_zone
from eventservice.console.base.views import ConsoleView
from eventservice.db.now import db_now
from eventservice.kernel.errors import Conflict
from eventservice.operators.audit_log import record_action
from eventservice.operators.roles import Role
from eventservice.tenants.directory import get_tenant
from eventservice.tenants.keys import (
    MAX_LIFETIME,
    create_key,
    get_key,
    list_keys_with_state,
    require_rotatable,
    revoke_key,
    rotate_key,
)
from eventservice.tenants.models import ApiKey, Tenant

SCOPES = (
    ("read", "read calls, events, limits and the names of keys"),
    ("write", "submit, cancel, reschedule and replay calls; manage durable timers"),
    ("admin", "manage namespaces and keys"),
)
OPERATOR_SCOPES = (
    ("read", "read everything of every tenant, statistics, shards, nodes and metrics"),
    ("write", "submit, cancel, reschedule and replay calls of every tenant"),
    ("admin", "manage tenants and their limits, namespaces and keys"),
)
LIFETIMES = (("", "Never"), ("30d", "In 30 days"), ("90d", "In 90 days"), ("365d", "In a year"))
OVERLAPS = (
    ("0s", "No time: it expires now"),
    ("1h", "1 hour"),
    ("24h", "1 day"),
    ("168h", "7 days"),
    ("720h", "30 days"),
)


class OperatorKeysPage(ConsoleView):
    nav = "tenants"
    template = "console/tenants/operator_keys.html"

    def get(self, request: HttpRequest) -> HttpResponse:
        now = db_now()
        return self.render({"now": now, "keys": list_keys_with_state(None, now), "tenant": None})


class KeyView(ConfirmView):
    """A page for a tenant's key if the URL names a tenant, otherwise for an operator key."""

    nav = "tenants"
    read_role = write_role = Role.ADMIN

    def list_address(self, tenant_id: uuid.UUID | None) -> str:
        if tenant_id is None:
            return reverse("console:operator-keys")
        return reverse("console:tenant", args=[tenant_id]) + "#keys"

    def create_and_record(
        self, action: str, command: Callable[[], tuple[ApiKey, str]], **detail: Any
    ) -> tuple[ApiKey, str]:
        """Create a key and record it in the audit log by its id, never with its text."""
        with transaction.atomic():
            key, text = command()
            entry = {
                "name": key.name,
                "scopes": key.scopes,
                "expires": format_instant(key.expires_at),
                **detail,
            }
            record_action(self.request.user, action, tenant_id=key.tenant_id, subject=key.key_id, **entry)
        return key, text

    def show_once(self, tenant: Tenant | None, key: ApiKey, text: str, replaced: str = "") -> HttpResponse:
        """Show the key in the response to the form itself: no message, session or log contains it."""
        key.refresh_from_db()
        context = {
            "tenant": tenant,
            "key": key,
            "text": text,
            "api_url": self.request.build_absolute_uri(
                f"/api/v1/tenants/{tenant.tenant_id}/service-calls" if tenant else "/api/v1/tenants"
            ),
            "replaced": replaced,
            "now": db_now(),
            "back_to": self.list_address(key.tenant_id),
        }
        return self.render(context, "console/tenants/key_created.html", status=201)


class KeyForm(SchemaForm[ApiKeyInputSchema]):
    schema = ApiKeyInputSchema
    name = PlainText(empty_value=None)
    scopes = Checkboxes()
    expires_at = PlainText(empty_value=None)

    def clean_expires_at(self) -> str | None:
        """Replace a duration that the form offers by an instant. Any other text must be an instant, as in the API."""
        text: str | None = self.cleaned_data["expires_at"]
        seconds = parse_duration(text or "")
        if not seconds:
            return text
        # A duration that is too long is refused as an instant, so it must stay within the calendar.
        seconds = min(seconds, 2 * MAX_LIFETIME.total_seconds())
        return format_instant(db_now() + timedelta(seconds=seconds))


class CreateKey(KeyView):
    template = "console/tenants/new_key.html"

    def get(self, request: HttpRequest, tenant_id: uuid.UUID | None = None) -> HttpResponse:
        return self._show_form(tenant_id, KeyForm(initial={"scopes": ["read", "write"]}))

    def _show_form(self, tenant_id: uuid.UUID | None, form: KeyForm, status: int = 200) -> HttpResponse:
        context = {
            "tenant": get_tenant(tenant_id) if tenant_id else None,
            "form": form,
            "scopes": SCOPES if tenant_id else OPERATOR_SCOPES,
            "lifetimes": LIFETIMES,
            "back_to": self.list_address(tenant_id),
        }
        return self.render(context, status=status)

    def post(self, request: HttpRequest, tenant_id: uuid.UUID | None = None) -> HttpResponse:
        tenant = get_tenant(tenant_id) if tenant_id else None
        form = KeyForm(request.POST)
        if not form.is_valid():
            return self._show_form(tenant_id, form, 400)
        wanted = form.document
        key, text = self.create_and_record(
            "key-create",
            lambda: create_key(
                tenant_id, wanted.scope_names, name=wanted.name or "", expires_at=wanted.expires_at
            ),
        )
        return self.show_once(tenant, key, text)


class RotateKey(KeyView):
    def get(self, request: HttpRequest, key_id: str, tenant_id: uuid.UUID | None = None) -> HttpResponse:
        key = get_key(tenant_id, key_id)
        require_rotatable(key)
        return self.render_confirmation(
            f"Rotate {key.name or key.key_id}?",
            "Create new key",
            back_to=self.list_address(tenant_id),
            template="console/tenants/rotate_key.html",
            text="A new key with the same scopes is created and shown once. The old key stays valid for the time you "
            "choose, so that programs can switch over.",
            overlaps=OVERLAPS,
        )

    def post(self, request: HttpRequest, key_id: str, tenant_id: uuid.UUID | None = None) -> HttpResponse:
        tenant = get_tenant(tenant_id) if tenant_id else None
        overlap = parse(RotationSchema, {"overlap": request.POST.get("overlap", "").strip()}).overlap_time

        def rotate() -> tuple[ApiKey, str]:
            key = get_key(tenant_id, key_id)
            require_rotatable(key)
            return rotate_key(key, overlap)

        key, text = self.create_and_record("key-rotate", rotate, replaces=key_id, overlap=str(overlap))
        return self.show_once(tenant, key, text, replaced=key_id)


class RevokeKey(KeyView):
    def get(self, request: HttpRequest, key_id: str, tenant_id: uuid.UUID | None = None) -> HttpResponse:
        key = get_key(tenant_id, key_id)
        return self.render_confirmation(
            f"Revoke {key.name or key.key_id}?",
            "Revoke",
            back_to=self.list_address(tenant_id),
            text=f"Requests with the key es_…_{key.key_id}_… are refused within a second. This cannot be undone. "
            f"{_format_last_use(key)} To switch to a new key without interruption, rotate it instead.",
            danger=True,
        )

    def post(self, request: HttpRequest, key_id: str, tenant_id: uuid.UUID | None = None) -> HttpResponse:
        key = get_key(tenant_id, key_id)
        self.run_audited(
            "key-revoke", lambda: _revoke(key_id), tenant_id=tenant_id, subject=key_id, name=key.name
        )
        self.report_success(f"Key {key.name or key_id} revoked.")
        return self.redirect_back(self.list_address(tenant_id))


def _revoke(key_id: str) -> None:
    if not revoke_key(key_id):
        raise Conflict("wrong_state", "This key has already been revoked.")


def _format_last_use(key: ApiKey) -> str:
    if key.last_used_at is None:
        return "It has never been used."
    return f"It was last used around {format_instant_in_zone(key.last_used_at, milliseconds=False)}."

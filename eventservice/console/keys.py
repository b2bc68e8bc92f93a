"""API keys: made and shown once, followed by a successor, revoked. A tenant's, and the operators' own."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from eventservice.api.formats import format_instant, parse_duration
from eventservice.api.problems import InvalidRequest
from eventservice.api.schema.tenants import ApiKeyInputSchema, RotationSchema
from eventservice.console.base.confirm import ConfirmView
from eventservice.console.base.forms import Form
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
    ("read", "look at calls, events, limits and keys' names"),
    ("write", "submit, cancel, reschedule and replay calls; durable timers"),
    ("admin", "namespaces and keys"),
)
OPERATOR_SCOPES = (
    ("read", "look at everything, of every tenant; statistics, shards, nodes, metrics"),
    ("write", "submit, cancel, reschedule and replay calls of every tenant"),
    ("admin", "tenants and their limits, namespaces and keys"),
)
LIVES = (("", "Never"), ("30d", "In 30 days"), ("90d", "In 90 days"), ("365d", "In a year"))
OVERLAPS = (
    ("0s", "None: the old key ends now"),
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
    """Of a tenant when the address names one, else of the operators' own."""

    nav = "tenants"
    read_role = write_role = Role.ADMIN

    def list_address(self, tenant_id: uuid.UUID | None) -> str:
        if tenant_id is None:
            return reverse("console:operator-keys")
        return reverse("console:tenant", args=[tenant_id]) + "#keys"

    def make_key(
        self, action: str, command: Callable[[], tuple[ApiKey, str]], **detail: Any
    ) -> tuple[ApiKey, str]:
        """Noted under the key's id, which is known only once it is made; and never with its text."""
        with transaction.atomic():
            key, text = command()
            said = {
                "name": key.name,
                "scopes": key.scopes,
                "expires": format_instant(key.expires_at),
                **detail,
            }
            record_action(self.request.user, action, tenant_id=key.tenant_id, subject=key.key_id, **said)
        return key, text

    def show_once(self, tenant: Tenant | None, key: ApiKey, text: str, replaced: str = "") -> HttpResponse:
        """In the answer to the form itself, and nowhere else: no message, no session, no log has it."""
        key.refresh_from_db()
        context = {
            "tenant": tenant,
            "key": key,
            "text": text,
            "replaced": replaced,
            "now": db_now(),
            "back_to": self.list_address(key.tenant_id),
        }
        return self.render(context, "console/tenants/key_created.html", status=201)


class CreateKey(KeyView):
    template = "console/tenants/new_key.html"

    def get(self, request: HttpRequest, tenant_id: uuid.UUID | None = None) -> HttpResponse:
        return self._show_form(tenant_id, {"scopes": ["read", "write"]}, {})

    def _show_form(
        self, tenant_id: uuid.UUID | None, given: Any, wrong: Any, status: int = 200
    ) -> HttpResponse:
        context = {
            "tenant": get_tenant(tenant_id) if tenant_id else None,
            "given": given,
            "wrong": wrong,
            "scopes": SCOPES if tenant_id else OPERATOR_SCOPES,
            "lives": LIVES,
            "back_to": self.list_address(tenant_id),
        }
        return self.render(context, status=status)

    def post(self, request: HttpRequest, tenant_id: uuid.UUID | None = None) -> HttpResponse:
        tenant = get_tenant(tenant_id) if tenant_id else None
        form = Form(request.POST, ["name", "expiresAt"], several=["scopes"])
        form.leave_out_empty("name", "expiresAt")
        _expires_in(form)
        asked = form.parse(ApiKeyInputSchema)
        if asked is None:
            given = {**request.POST.dict(), "scopes": request.POST.getlist("scopes")}
            return self._show_form(tenant_id, given, form.wrong, 400)

        key, text = self.make_key(
            "key-create",
            lambda: create_key(
                tenant_id, asked.scope_names, name=asked.name or "", expires_at=asked.expires_at
            ),
        )
        return self.show_once(tenant, key, text)


class RotateKey(KeyView):
    def get(self, request: HttpRequest, key_id: str, tenant_id: uuid.UUID | None = None) -> HttpResponse:
        key = get_key(tenant_id, key_id)
        require_rotatable(key)
        return self.render_confirmation(
            f"Rotate {key.name or key.key_id}?",
            "Make the new key",
            back_to=self.list_address(tenant_id),
            template="console/tenants/rotate_key.html",
            text="A new key with the same rights is made and shown once. The old one goes on for as long as you "
            "say, so that whoever uses it can change over; then it ends.",
            overlaps=OVERLAPS,
        )

    def post(self, request: HttpRequest, key_id: str, tenant_id: uuid.UUID | None = None) -> HttpResponse:
        tenant = get_tenant(tenant_id) if tenant_id else None
        form = Form(request.POST, ["overlap"])
        rotation = form.parse(RotationSchema)
        if rotation is None:
            raise InvalidRequest(form.faults)
        overlap = rotation.overlap_time

        def rotate() -> tuple[ApiKey, str]:
            key = get_key(tenant_id, key_id)
            require_rotatable(key)
            return rotate_key(key, overlap)

        key, text = self.make_key("key-rotate", rotate, replaces=key_id, overlap=str(overlap))
        return self.show_once(tenant, key, text, replaced=key_id)


class RevokeKey(KeyView):
    def get(self, request: HttpRequest, key_id: str, tenant_id: uuid.UUID | None = None) -> HttpResponse:
        key = get_key(tenant_id, key_id)
        return self.render_confirmation(
            f"Revoke {key.name or key.key_id}?",
            "Revoke it",
            back_to=self.list_address(tenant_id),
            text=f"Whoever uses the key es_…_{key.key_id}_… is refused within a second, for good. {_last_use(key)} "
            "To change over without a gap, rotate it instead.",
            danger=True,
        )

    def post(self, request: HttpRequest, key_id: str, tenant_id: uuid.UUID | None = None) -> HttpResponse:
        key = get_key(tenant_id, key_id)
        self.run_audited(
            "key-revoke", lambda: _revoke(key_id), tenant_id=tenant_id, subject=key_id, name=key.name
        )
        self.report_success(f"The key {key.name or key_id} is revoked.")
        return self.redirect_back(self.list_address(tenant_id))


def _revoke(key_id: str) -> None:
    if not revoke_key(key_id):
        raise Conflict("wrong_state", "Nothing has been changed: this key has been revoked before.")


def _last_use(key: ApiKey) -> str:
    if key.last_used_at is None:
        return "Nobody has used it yet."
    return f"It was last used on {key.last_used_at:%Y-%m-%d} at {key.last_used_at:%H:%M} UTC, to the hour."


def _expires_in(form: Form) -> None:
    """Of the choices that the form has; another text must be an instant, as in the API."""
    seconds = parse_duration(form.document.get("expiresAt", ""))
    if seconds:
        # One that is too long is refused as a time, which the calendar must have.
        seconds = min(seconds, 2 * MAX_LIFETIME.total_seconds())
        form.document["expiresAt"] = format_instant(db_now() + timedelta(seconds=seconds))

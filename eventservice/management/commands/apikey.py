from __future__ import annotations

import uuid
from datetime import datetime, timedelta
from functools import partial

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import transaction

from eventservice.api.formats import format_instant
from eventservice.db.now import db_now
from eventservice.kernel.errors import DomainError
from eventservice.management.commands.tenant import get_tenant_argument
from eventservice.management.database import name_database
from eventservice.management.terminal import (
    Terminal,
    ignore_case,
    parse_document,
    parse_duration_argument,
    parse_positive_duration,
)
from eventservice.operators.audit_log import CommandLine, record_action, run_audited
from eventservice.tenants.keys import (
    MAX_LIFETIME,
    MAX_OVERLAP,
    create_key,
    find_active_key,
    find_hash_key_mark,
    list_keys,
    require_rotatable,
    revoke_key,
    rotate_key,
)
from eventservice.tenants.models import ApiKey

DEFAULT_SCOPES = (ApiKey.Scope.READ.value, ApiKey.Scope.WRITE.value)


class Command(BaseCommand):
    help = "Manage API keys directly in the database, for example to create the first operator key."

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        create = actions.add_parser("create", help="create a key and print it once")
        owner = create.add_mutually_exclusive_group(required=True)
        owner.add_argument("--tenant", help="tenant name or id")
        owner.add_argument(
            "--operator", action="store_true", help="create an operator key, valid for all tenants"
        )
        scopes = ApiKey.Scope.values
        default = " and ".join(DEFAULT_SCOPES)
        create.add_argument(
            "--scope",
            action="append",
            type=ignore_case(scopes),
            choices=scopes,
            help=f"what the key may do; repeat the option for several scopes (default: {default})",
        )
        create.add_argument("--name", default="")
        lifetime = partial(parse_positive_duration, maximum=MAX_LIFETIME)
        create.add_argument("--expires", type=lifetime, metavar="30d", help="lifetime (default: unlimited)")
        listing = actions.add_parser("list")
        listing.add_argument("--tenant", help="tenant name or id (default: list operator keys)")
        rotate = actions.add_parser(
            "rotate", help="create a successor; the old key expires after the overlap"
        )
        rotate.add_argument("id")
        overlap = partial(parse_duration_argument, maximum=MAX_OVERLAP)
        rotate.add_argument("--overlap", type=overlap, default=timedelta(hours=24), metavar="24h")
        actions.add_parser("revoke", help="revoke a key immediately").add_argument("id")
        for parser_of_action in (create, listing, rotate):
            parser_of_action.add_argument("--json", action="store_true")

    def handle(self, *args: object, action: str, **options: object) -> None:
        self.terminal = Terminal(self, as_json=bool(options.get("json")))
        getattr(self, f"_{action}")(**options)

    def _create(
        self,
        *,
        tenant: str | None,
        name: str | None,
        scope: list[str] | None,
        expires: timedelta | None,
        **options: object,
    ) -> None:
        from eventservice.api.schema.tenants import ApiKeyInputSchema

        tenant_id = _find_tenant_id(tenant)
        expires_at = None if expires is None else db_now() + expires
        fields = {"name": name} if name else {}
        scopes = scope or DEFAULT_SCOPES
        asked = parse_document(
            ApiKeyInputSchema,
            {**fields, "scopes": sorted(set(scopes))},
            {"/name": "--name", "/scopes": "--scope"},
        )
        with transaction.atomic():
            key, text = create_key(tenant_id, asked.scope_names, name=asked.name or "", expires_at=expires_at)
            _record_key("key-create", key)
        self._print_new_key(key, text)

    def _rotate(self, *, id: str, overlap: timedelta, **options: object) -> None:
        key = self._find_key(id)
        try:
            require_rotatable(key)
            with transaction.atomic():
                successor, text = rotate_key(key, overlap)
                _record_key("key-rotate", successor, replaces=key.key_id, overlap=str(overlap))
        except DomainError as error:
            raise CommandError(error.message) from None
        self._print_new_key(successor, text)

    def _revoke(self, *, id: str, **options: object) -> None:
        key = self._find_key(id)
        run_audited(
            CommandLine(),
            "key-revoke",
            lambda: revoke_key(id),
            changed=bool,
            tenant_id=key.tenant_id,
            subject=id,
            name=key.name,
        )
        self.stdout.write("Key revoked.")

    def _list(self, *, tenant: str | None, **options: object) -> None:
        tenant_id = _find_tenant_id(tenant)
        now = db_now()
        rows = [_to_row(key, now) for key in list_keys(tenant_id)]
        if self.terminal.as_json:
            self.terminal.json(rows)
        else:
            # See eventservice.tenants.keys.record_use.
            last_used = "last used (updated hourly)"
            columns = ("id", "name", "scopes", "created", "expires", "revoked", last_used, "secret key")
            empty = (
                "No keys."
                if tenant_id
                else f"No operator keys in {name_database()}. Use --tenant NAME to list the keys of a tenant."
            )
            self.terminal.table(columns, [[*row.values()] for row in rows], empty=empty, cut=("name",))

    def _find_key(self, key_id: str) -> ApiKey:
        key = find_active_key(key_id)
        if key is None:
            raise CommandError(f"There is no active key {key_id!r} in {name_database()}.")
        return key

    def _print_new_key(self, key: ApiKey, text: str) -> None:
        if self.terminal.as_json:
            self.terminal.json({"keyId": key.key_id, "scopes": key.scopes, "key": text})
        else:
            self.stdout.write(text)


def _record_key(action: str, key: ApiKey, **detail: object) -> None:
    """Record a key in the audit log by its id, never with its text."""
    expires = format_instant(key.expires_at)
    about = {"name": key.name, "scopes": key.scopes, "expires": expires, **detail}
    record_action(CommandLine(), action, tenant_id=key.tenant_id, subject=key.key_id, **about)


def _find_tenant_id(name_or_id: str | None) -> uuid.UUID | None:
    """Return None for operator keys. An empty string is an unknown tenant, so an unset variable creates no operator key."""
    return None if name_or_id is None else get_tenant_argument(name_or_id).tenant_id


def _to_row(key: ApiKey, now: datetime) -> dict[str, object]:
    times = {
        "created": key.created_at,
        "expires": key.expires_at,
        "revoked": key.revoked_at,
        "used": key.last_used_at,
    }
    formatted = {name: time and time.isoformat(timespec="seconds") for name, time in times.items()}
    mark = find_hash_key_mark(key, now)
    # Nothing unless the SECRET_KEY was rotated (docs/operations.md): fallback, unknown or lost.
    return {"keyId": key.key_id, "name": key.name, "scopes": key.scopes, **formatted, "secretKey": mark}

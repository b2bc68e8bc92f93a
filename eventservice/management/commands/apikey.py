from __future__ import annotations

import uuid
from datetime import timedelta
from functools import partial
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from eventservice.api.fields import Fields
from eventservice.api.problems import FieldError
from eventservice.api.tenant_rules import LONGEST_OVERLAP, read_key
from eventservice.db.now import db_now
from eventservice.kernel.errors import DomainError
from eventservice.management.commands.tenant import tenant_of
from eventservice.management.terminal import Terminal, length_of_time, refuse_wrong, some_time
from eventservice.tenants.keys import (
    MAX_LIFETIME,
    create_key,
    find_active_key,
    list_keys,
    require_rotatable,
    revoke_key,
    rotate_key,
)
from eventservice.tenants.models import ApiKey


class Command(BaseCommand):
    help = "API keys, on the database itself: the way to the first operator's key."

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        create = actions.add_parser("create", help="a new key; shown this once")
        whose = create.add_mutually_exclusive_group(required=True)
        whose.add_argument("--tenant", help="its name or id")
        whose.add_argument("--operator", action="store_true", help="for all tenants")
        create.add_argument("--scope", action="append", choices=ApiKey.Scope.values)
        create.add_argument("--name", default="")
        life = partial(some_time, most=MAX_LIFETIME)
        create.add_argument("--expires", type=life, metavar="30d", help="after so long; else never")
        listing = actions.add_parser("list")
        listing.add_argument("--tenant", help="its name or id; without it, the operators' keys")
        rotate = actions.add_parser("rotate", help="a successor; the old key ends after the overlap")
        rotate.add_argument("id")
        overlap = partial(length_of_time, most=timedelta(seconds=LONGEST_OVERLAP))
        rotate.add_argument("--overlap", type=overlap, default=timedelta(hours=24), metavar="24h")
        actions.add_parser("revoke", help="end a key now").add_argument("id")
        for parser_of_action in (create, listing, rotate):
            parser_of_action.add_argument("--json", action="store_true")

    def handle(self, *args: Any, action: str, **options: Any) -> None:
        self.terminal = Terminal(self, as_json=bool(options.get("json")))
        getattr(self, f"_{action}")(options)

    def _create(self, options: dict[str, Any]) -> None:
        tenant_id = _tenant_id(options["tenant"])
        expires = options["expires"]
        expires_at = None if expires is None else db_now() + expires
        named = {"name": options["name"]} if options["name"] else {}
        scopes = options["scope"] or [ApiKey.Scope.READ.value, ApiKey.Scope.WRITE.value]
        faults: list[FieldError] = []
        name, scopes, _ = read_key(Fields({**named, "scopes": sorted(set(scopes))}, faults))
        refuse_wrong(faults)
        key, text = create_key(tenant_id, scopes, name=name, expires_at=expires_at)
        self._show_new(key, text)

    def _rotate(self, options: dict[str, Any]) -> None:
        key = self._found(options["id"])
        try:
            require_rotatable(key)
            successor, text = rotate_key(key, options["overlap"])
        except DomainError as refused:
            raise CommandError(refused.message) from None
        self._show_new(successor, text)

    def _revoke(self, options: dict[str, Any]) -> None:
        if not revoke_key(options["id"]):
            raise CommandError(f"There is no key {options['id']!r} that has not been revoked.")
        self.stdout.write("Revoked.")

    def _list(self, options: dict[str, Any]) -> None:
        tenant_id = _tenant_id(options["tenant"])
        rows = [_row(key) for key in list_keys(tenant_id)]
        if self.terminal.as_json:
            self.terminal.json(rows)
        else:
            columns = ("id", "name", "scopes", "created", "expires", "revoked", "last used")
            empty = "No key yet." if tenant_id else "No operators' key yet; --tenant NAME lists a tenant's."
            self.terminal.table(columns, [[*row.values()] for row in rows], empty=empty, may_be_cut=("name",))

    def _found(self, key_id: str) -> ApiKey:
        key = find_active_key(key_id)
        if key is None:
            raise CommandError(f"There is no key {key_id!r} that has not been revoked.")
        return key

    def _show_new(self, key: ApiKey, text: str) -> None:
        if self.terminal.as_json:
            self.terminal.json({"keyId": key.key_id, "scopes": key.scopes, "key": text})
        else:
            self.stdout.write(text)


def _tenant_id(named: str | None) -> uuid.UUID | None:
    """An empty text names a tenant that there is not: a variable that is not set must not make an operator's key."""
    return None if named is None else tenant_of(named).tenant_id


def _row(key: ApiKey) -> dict[str, Any]:
    moments = {
        "created": key.created_at,
        "expires": key.expires_at,
        "revoked": key.revoked_at,
        "used": key.last_used_at,
    }
    shown = {name: moment and moment.isoformat(timespec="seconds") for name, moment in moments.items()}
    return {"keyId": key.key_id, "name": key.name, "scopes": key.scopes, **shown}

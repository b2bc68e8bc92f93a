from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from eventservice.kernel.now import db_now
from eventservice.management.commands.tenant import named
from eventservice.management.terminal import Terminal
from eventservice.tenants.keys import create_key, find_by_id, keys_of, revoke_key, rotate_key
from eventservice.tenants.models import ApiKey


class Command(BaseCommand):
    help = "API keys, on the database itself: the way to the first operator's key."

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        create = actions.add_parser("create", help="a new key; shown this once")
        whose = create.add_mutually_exclusive_group(required=True)
        whose.add_argument("--tenant", help="its name")
        whose.add_argument("--operator", action="store_true", help="for all tenants")
        create.add_argument("--scope", action="append", choices=ApiKey.Scope.values)
        create.add_argument("--name", default="")
        create.add_argument("--days", type=float, help="until it expires")
        listing = actions.add_parser("list")
        listing.add_argument("--tenant", help="its name; without it, the operators' keys")
        rotate = actions.add_parser("rotate", help="a successor; the old key ends after the overlap")
        rotate.add_argument("id")
        rotate.add_argument("--overlap-hours", type=float, default=24.0)
        actions.add_parser("revoke", help="end a key now").add_argument("id")
        for parser_of_action in (create, listing, rotate):
            parser_of_action.add_argument("--json", action="store_true")

    def handle(self, *args: Any, action: str, **options: Any) -> None:
        self.terminal = Terminal(self, as_json=bool(options.get("json")))
        getattr(self, f"_{action}")(options)

    def _create(self, options: dict[str, Any]) -> None:
        tenant = named(options["tenant"]) if options["tenant"] else None
        days = options["days"]
        expires_at = None if days is None else db_now() + timedelta(days=days)
        scopes = options["scope"] or [ApiKey.Scope.READ, ApiKey.Scope.WRITE]
        key, text = create_key(
            tenant.tenant_id if tenant else None, scopes, name=options["name"], expires_at=expires_at
        )
        self._show_new(key, text)

    def _rotate(self, options: dict[str, Any]) -> None:
        key, text = rotate_key(self._found(options["id"]), timedelta(hours=options["overlap_hours"]))
        self._show_new(key, text)

    def _revoke(self, options: dict[str, Any]) -> None:
        if not revoke_key(options["id"]):
            raise CommandError(f"There is no key {options['id']!r} that has not been revoked.")
        self.stdout.write("Revoked.")

    def _list(self, options: dict[str, Any]) -> None:
        tenant = named(options["tenant"]) if options["tenant"] else None
        rows = [_row(key) for key in keys_of(tenant.tenant_id if tenant else None)]
        if self.terminal.as_json:
            self.terminal.json(rows)
        else:
            columns = ("id", "name", "scopes", "created", "expires", "revoked", "last used")
            self.terminal.table(columns, [[*row.values()] for row in rows], empty="No key yet.")

    def _found(self, key_id: str) -> ApiKey:
        key = find_by_id(key_id)
        if key is None:
            raise CommandError(f"There is no key {key_id!r} that has not been revoked.")
        return key

    def _show_new(self, key: ApiKey, text: str) -> None:
        if self.terminal.as_json:
            self.terminal.json({"keyId": key.key_id, "scopes": key.scopes, "key": text})
        else:
            self.stdout.write(text)


def _row(key: ApiKey) -> dict[str, Any]:
    moments = {
        "created": key.created_at,
        "expires": key.expires_at,
        "revoked": key.revoked_at,
        "used": key.last_used_at,
    }
    shown = {name: moment and moment.isoformat(timespec="seconds") for name, moment in moments.items()}
    return {"keyId": key.key_id, "name": key.name, "scopes": key.scopes, **shown}

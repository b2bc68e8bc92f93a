from __future__ import annotations

from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import IntegrityError

from eventservice.kernel.errors import DomainError
from eventservice.management.terminal import Terminal
from eventservice.tenants.models import Namespace, Tenant
from eventservice.tenants.public import create_tenant, declare_namespace


class Command(BaseCommand):
    help = "Tenants, on the database itself: list them, make one, or declare a namespace of one."

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        actions.add_parser("list").add_argument("--json", action="store_true")
        create = actions.add_parser("create")
        create.add_argument("name")
        create.add_argument("--json", action="store_true")
        namespace = actions.add_parser("namespace")
        namespace.add_argument("tenant", help="its name")
        namespace.add_argument("name")
        namespace.add_argument("--shards", type=int, default=16)
        namespace.add_argument("--json", action="store_true")

    def handle(self, *args: Any, action: str, **options: Any) -> None:
        terminal = Terminal(self, as_json=options["json"])
        try:
            tenants = {"list": _list, "create": _create, "namespace": _namespace}[action](options)
        except (DomainError, ValidationError) as refused:
            raise CommandError(str(refused)) from None
        except IntegrityError:
            raise CommandError(f"A tenant {options['name']!r} exists.") from None
        rows = [_row(tenant) for tenant in tenants]
        if terminal.as_json:
            terminal.json(rows)
        else:
            terminal.table(
                ("tenant", "id", "active", "namespaces"),
                [[*row.values()] for row in rows],
                empty="No tenant yet.",
            )


def _list(options: dict[str, Any]) -> list[Tenant]:
    return list(Tenant.objects.order_by("name"))


def _create(options: dict[str, Any]) -> list[Tenant]:
    return [create_tenant(options["name"])]


def _namespace(options: dict[str, Any]) -> list[Tenant]:
    tenant = named(options["tenant"])
    declare_namespace(tenant.tenant_id, options["name"], options["shards"])
    return [tenant]


def named(name: str) -> Tenant:
    tenant = Tenant.objects.filter(name=name).first()
    if tenant is None:
        raise CommandError(f"There is no tenant {name!r}.")
    return tenant


def _row(tenant: Tenant) -> dict[str, Any]:
    spaces = Namespace.objects.for_tenant(tenant.tenant_id).order_by("name")
    return {
        "name": tenant.name,
        "tenantId": str(tenant.tenant_id),
        "active": tenant.active,
        "namespaces": [f"{space.name} ({space.num_shards})" for space in spaces],
    }

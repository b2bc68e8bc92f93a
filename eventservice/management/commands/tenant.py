from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import IntegrityError

from eventservice.db.now import db_now
from eventservice.kernel.errors import DomainError
from eventservice.kernel.ids import new_id
from eventservice.management.database import name_database
from eventservice.management.terminal import Terminal, parse_document
from eventservice.operators.audit_log import CommandLine, describe_changes, record_action, run_audited
from eventservice.operators.formatting import format_refusals
from eventservice.tenants.directory import create_tenant, update_tenant
from eventservice.tenants.models import LimitCode, Namespace, NamespaceSize, Tenant
from orchestration.feeder.namespaces import declare_namespace
from orchestration.statistics.usage import read_usage

# The limits of a tenant, by their names in the API.
LIMITS = {
    "maxInFlight": "max_in_flight",
    "maxPending": "max_pending",
    "requestsPerMinute": "requests_per_minute",
    "bytesPerMinute": "bytes_per_minute",
    "maxStoredBytes": "max_stored_bytes",
}


class Command(BaseCommand):
    help = (
        "Manage tenants directly in the database: list or create tenants, show or change limits with what is in use, and "
        "create namespaces."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        actions.add_parser("list").add_argument("--json", action="store_true")
        create = actions.add_parser("create")
        create.add_argument("name")
        create.add_argument(
            "--id",
            type=uuid.UUID,
            metavar="UUID",
            dest="tenant_id",
            help="id that the tenant has in the other cells that share a timer store (docs/timer-stores.md)",
        )
        create.add_argument("--json", action="store_true")
        namespace = actions.add_parser("namespace")
        namespace.add_argument("tenant", help="tenant name or id")
        namespace.add_argument("name")
        shards = namespace.add_mutually_exclusive_group()
        shards.add_argument(
            "--size",
            choices=NamespaceSize.values,
            help="size of a new namespace (default: small); it cannot be changed later (docs/timers.md)",
        )
        shards.add_argument("--shards", type=int, help="number of shards, instead of a size")
        namespace.add_argument(
            "--store", metavar="NAME", help="timer store of a new namespace (docs/timer-stores.md)"
        )
        namespace.add_argument("--json", action="store_true")
        limits = actions.add_parser("limits")
        limits.add_argument("tenant", help="tenant name or id")
        for column in LIMITS.values():
            limits.add_argument(_get_option(column), type=int, metavar="N")
        limits.add_argument("--json", action="store_true")

    def handle(self, *args: object, action: str, **options: Any) -> None:
        terminal = Terminal(self, as_json=options["json"])
        if action == "limits":
            _show_limits(terminal, _change_limits(**options))
            return
        try:
            tenants = ACTIONS[action](**options)
        except DomainError as refused:
            raise CommandError(str(refused)) from None
        except IntegrityError:
            raise CommandError(f"A tenant {options['name']!r} exists.") from None
        rows = _to_rows(tenants)
        if terminal.as_json:
            terminal.json(rows)
        else:
            terminal.table(
                ("tenant", "id", "active", "namespaces"),
                [[*row.values()] for row in rows],
                empty=f"No tenant yet in {name_database()}.",
            )


def _list(**options: object) -> list[Tenant]:
    return list(Tenant.objects.order_by("name"))


def _create(*, name: str, tenant_id: uuid.UUID | None, **options: object) -> list[Tenant]:
    from eventservice.api.schema.tenants import TenantInputSchema

    accepted = parse_document(TenantInputSchema, {"name": name}).name
    tenant_id = tenant_id or new_id()
    if existing := Tenant.objects.filter(pk=tenant_id).first():
        raise CommandError(f"The tenant {existing.name!r} has the id {tenant_id}.")
    tenant = run_audited(
        CommandLine(),
        "tenant-create",
        lambda: create_tenant(accepted, tenant_id=tenant_id),
        tenant_id=tenant_id,
        subject=tenant_id,
        name=accepted,
    )
    return [tenant]


def _namespace(
    *, tenant: str, name: str, size: str | None, shards: int | None, store: str | None, **options: object
) -> list[Tenant]:
    from eventservice.api.schema.tenants import NamespaceInputSchema

    owner = get_tenant_argument(tenant)
    namespace = parse_document(
        NamespaceInputSchema,
        {"name": name, "size": size, "numShards": shards, "store": store},
        {"/numShards": "--shards", "/size": "--size", "/store": "--store"},
    )
    owner_id = owner.tenant_id

    def record(made: Namespace) -> None:
        record_action(
            CommandLine(), "namespace-create", tenant_id=owner_id, subject=owner_id, **made.audit_detail
        )

    declare_namespace(owner_id, namespace.name, namespace.shards, namespace.store, record=record)
    return [owner]


def _change_limits(*, tenant: str, **options: Any) -> Tenant:
    from eventservice.api.schema.tenants import TenantSettingsSchema

    owner = get_tenant_argument(tenant)
    given = {name: options[column] for name, column in LIMITS.items() if options[column] is not None}
    names = {f"/{name}": _get_option(column) for name, column in LIMITS.items()}
    changes = parse_document(TenantSettingsSchema, given, names).changes()
    different: dict[str, Any] = {
        column: value for column, value in changes.items() if getattr(owner, column) != value
    }
    if not different:
        return owner
    changed: Tenant = run_audited(
        CommandLine(),
        "tenant-change",
        lambda: update_tenant(owner.tenant_id, **different),
        tenant_id=owner.tenant_id,
        subject=owner.tenant_id,
        **describe_changes(owner, different),
    )
    return changed


def _show_limits(terminal: Terminal, tenant: Tenant) -> None:
    values = {name: getattr(tenant, column) for name, column in LIMITS.items()}
    usage = read_usage(tenant)
    used = {"maxInFlight": usage.in_flight, "maxPending": usage.pending, "maxStoredBytes": usage.stored_bytes}
    if terminal.as_json:
        names = {"maxInFlight": "inFlight", "maxPending": "pending", "maxStoredBytes": "storedBytes"}
        terminal.json({**values, **{names[limit]: value for limit, value in used.items()}})
    else:
        now = db_now()
        refused = {
            LimitCode(one.code).column: format_refusals(one.count, one.last_at, now) for one in usage.refusals
        }
        rows = [
            (name, f"{value:,}", f"{used[name]:,}" if name in used else "", refused.get(LIMITS[name], ""))
            for name, value in values.items()
        ]
        terminal.table(("limit", "value", "in use", "last refusals"), rows, empty="")


def _get_option(column: str) -> str:
    return f"--{column.replace('_', '-')}"


def get_tenant_argument(name_or_id: str) -> Tenant:
    """Return the tenant with this name or id. Names take precedence over ids."""
    tenant = Tenant.objects.filter(name=name_or_id).first()
    if tenant is None and (tenant_id := _parse_uuid(name_or_id)):
        tenant = Tenant.objects.filter(pk=tenant_id).first()
    if tenant is None:
        raise CommandError(
            f"There is no tenant {name_or_id!r} in {name_database()}. `manage.py tenant list` lists them."
        )
    return tenant


def _parse_uuid(text: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(text)
    except ValueError:
        return None


ACTIONS: dict[str, Callable[..., list[Tenant]]] = {
    "list": _list,
    "create": _create,
    "namespace": _namespace,
}


def _to_rows(tenants: Sequence[Tenant]) -> list[dict[str, object]]:
    if len(tenants) == 1:
        listed = Namespace.objects.for_tenant(tenants[0].tenant_id)
    else:
        listed = Namespace.across_tenants.all()
    spaces = defaultdict(list)
    for space in listed.order_by("name"):
        shards = f"{space.num_shards}, {space.size}" if space.size else f"{space.num_shards}"
        place = f", in {space.store}" if space.store else ""
        spaces[space.tenant_id].append(f"{space.name} ({shards}{place})")
    return [
        {
            "name": tenant.name,
            "tenantId": str(tenant.tenant_id),
            "active": tenant.active,
            "namespaces": spaces[tenant.tenant_id],
        }
        for tenant in tenants
    ]

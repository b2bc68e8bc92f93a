"""Set up and inspect timer stores, and tell them about this cell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from eventservice.db.now import db_now
from eventservice.kernel.errors import DomainError
from eventservice.kernel.findings import Severity
from eventservice.management.commands.tenant import get_tenant_argument
from eventservice.management.terminal import Terminal
from eventservice.operators.audit_log import CommandLine, record_action, run_audited
from eventservice.tenants.directory import find_namespace
from orchestration.feeder.declarations import (
    NamespaceComparison,
    compare_namespaces,
    declare_as_here,
    examine_cell_store,
    find_num_shards,
)
from orchestration.lifecycle import abandon_takes
from timers.cell import get_cell_id, renew_cell_id
from timers.operator_views import list_nodes
from timers.stores.factory import build_store
from timers.stores.port import (
    NO_CELL,
    Member,
    QualifiedNamespace,
    ShardBacklog,
    ShardOwnership,
    TimerStore,
    TimerStoreError,
)

# What is done with one store.
ACTIONS = {
    "migrate": "create the table and its indexes, or what is missing of them",
    "check": "check the server, the table, the clock and the namespaces; the exit code is 1 if there is an error",
    "status": "show namespaces, processes, and shards with their owners and timers, which are all counted",
    "declare": "declare the namespaces of this cell as they are here, with the settings that decide how timers are sent",
}
RENEWAL = (
    "give this cell a new identity, after its database may have lost commits: it no longer acts on what it remembers to have "
    "taken from timer stores (stop the cluster first)"
)


class Command(BaseCommand):
    help = "Set up and inspect the timer stores in TIMER_STORES, and tell them about this cell."

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        for name, help_text in ACTIONS.items():
            action = actions.add_parser(name, help=help_text)
            action.add_argument("name", help="name of the store in TIMER_STORES")
            if name in ("check", "status"):
                action.add_argument("--json", action="store_true", dest="as_json", help="print JSON")
            if name == "declare":
                action.add_argument(
                    "--namespace",
                    metavar="TENANT/NAME",
                    help="only this one, by the name or the id of its tenant and its own name (default: all)",
                )
        actions.add_parser("renew_cell", help=RENEWAL)

    def handle(self, *args: object, action: str, **options: object) -> None:
        if action == "renew_cell":
            self.stdout.write(f"This cell has a new identity: {_renew_cell()}.")
            return
        name = str(options["name"])
        terminal = Terminal(self, as_json=bool(options.get("as_json")))
        store = _build_named_store(name)
        try:
            if action == "declare":
                self.run_declare(name, store, options.get("namespace"))
            else:
                getattr(self, f"run_{action}")(name, store, terminal)
        except (TimerStoreError, DomainError) as error:
            raise CommandError(str(error)) from error
        finally:
            store.close()

    def run_migrate(self, name: str, store: TimerStore, terminal: Terminal) -> None:
        store.migrate()
        self.stdout.write(f"The timer store {name} has its table and indexes.")

    def run_check(self, name: str, store: TimerStore, terminal: Terminal) -> None:
        findings = examine_cell_store(name, store)
        if terminal.as_json:
            terminal.json([{"code": f.code, "severity": f.severity, "text": f.text} for f in findings])
        else:
            for finding in findings:
                terminal.line(finding.severity, finding.text, finding.remedy)
        if any(finding.severity is Severity.ERROR for finding in findings):
            raise SystemExit(1)

    def run_status(self, name: str, store: TimerStore, terminal: Terminal) -> None:
        for finding in store.check():
            if not finding.is_ok:  # MongoDB answers also without its collection
                self.stderr.write(f"{finding.text}. {finding.remedy}")
        namespaces, members = compare_namespaces(name, store), store.members()
        numbers = range(find_num_shards(namespaces))
        shards = list(zip(store.shards(numbers), store.count_timers(numbers, db_now()), strict=True))
        size = store.measure_bytes()
        if terminal.as_json:
            terminal.json(
                {
                    "bytes": size,
                    "namespaces": [_build_namespace_document(one) for one in namespaces],
                    "processes": [
                        {"id": str(member.id), "heartbeats": member.beats, **member.metadata}
                        for member in members
                    ],
                    "shards": [_build_shard_document(*shard) for shard in shards],
                }
            )
            return
        terminal.pairs(
            {
                "size": "unknown" if size is None else f"{size:,} bytes",
                "namespaces": len(namespaces),
                "processes": len(members),
                "timers": sum(backlog.pending for _, backlog in shards),
                "overdue": sum(backlog.overdue for _, backlog in shards),
            }
        )
        terminal.table(
            ["namespace", "shards", "in this cell"],
            [
                [one.label, one.declared.num_shards if one.declared else "–", one.problem or "as declared"]
                for one in namespaces
            ],
            empty="The store has no namespaces.",
        )
        terminal.table(
            ["process", "cell", "shards"],
            _list_processes(members, [shard for shard, _ in shards], str(get_cell_id())),
            empty="No process shares the store.",
        )
        terminal.table(
            ["shard", "version", "owner", "timers", "overdue"],
            _list_used_shards(shards),
            empty="No shard has been claimed, and none has timers.",
        )

    def run_declare(self, name: str, store: TimerStore, namespace: object) -> None:
        chosen = None if namespace is None else [_parse_namespace(name, str(namespace))]
        labels = [one.label for one in declare_as_here(name, store, chosen)]
        if labels:
            record_action(CommandLine(), "timer-store-declare", subject=name, namespaces=labels)
        for label in labels:
            self.stdout.write(f"{label}: declared as in this cell.")
        left = [
            f"{one.label}: {one.problem}"
            for one in compare_namespaces(name, store)
            if one.num_shards is not None and one.problem and (chosen is None or one.namespace in chosen)
        ]
        if left:
            raise CommandError(f"This cannot be declared: {'; '.join(left)}.")
        if not labels:
            self.stdout.write(f"The timer store {name} declares everything as it is here.")


def _renew_cell() -> UUID:
    """Give this cell a new id, and let its ready calls wait for takes under it. Raise CommandError while the cluster runs."""
    now = db_now()
    if live := [node for node in list_nodes() if node.is_alive(now)]:
        where = ", ".join(f"{node.hostname} (process {node.process_id})" for node in live)
        raise CommandError(
            f"The cluster runs, and would go on under the old identity: {where}. Stop it and the web processes. If they were"
            " killed, wait until their leases have ended."
        )

    def renew() -> UUID:
        cell_id = renew_cell_id()
        abandon_takes()
        return cell_id

    return run_audited(CommandLine(), "cell-renew", renew, subject=get_cell_id())


def _parse_namespace(store: str, text: str) -> QualifiedNamespace:
    tenant, separator, name = text.partition("/")
    if not separator:
        raise CommandError(f"--namespace must be TENANT/NAME, and not {text!r}.")
    owner = get_tenant_argument(tenant)
    found = find_namespace(owner.tenant_id, name)
    if found is None or found.store != store:
        raise CommandError(f"{owner.name} has no namespace {name!r} in the timer store {store}.")
    return QualifiedNamespace(owner.tenant_id, name)


def _build_named_store(name: str) -> TimerStore:
    specs = {spec.name: spec for spec in settings.TIMER_STORES}
    if name not in specs:
        known = ", ".join(specs) or "none"
        raise CommandError(f"TIMER_STORES has no store {name!r}. It has: {known}.")
    try:
        return build_store(specs[name], NO_CELL)
    except ValueError as problem:
        raise CommandError(f"TIMER_STORES: {problem}.") from None


def _list_processes(
    members: Sequence[Member], shards: Sequence[ShardOwnership], own_cell: str
) -> list[list[object]]:
    owned = Counter(shard.owner for shard in shards)
    cells = [member.metadata.get("cell", "–") for member in members]
    return [
        [_name_process(member.metadata), "this cell" if cell == own_cell else cell, owned[str(member.id)]]
        for member, cell in zip(members, cells, strict=True)
    ]


def _name_process(metadata: Mapping[str, str]) -> str:
    return f"{metadata.get('hostname', '–')} (process {metadata.get('processId', '–')})"


def _list_used_shards(shards: Iterable[tuple[ShardOwnership, ShardBacklog]]) -> list[list[object]]:
    return [
        [
            shard.shard,
            shard.version,
            _name_process(shard.metadata) if shard.owner else "nobody",
            backlog.pending,
            backlog.overdue,
        ]
        for shard, backlog in shards
        if shard.version or backlog.pending
    ]


def _build_namespace_document(one: NamespaceComparison) -> dict[str, object]:
    return {
        "namespace": str(one.namespace),
        "numShards": one.declared and one.declared.num_shards,
        "problem": one.problem or None,
    }


def _build_shard_document(shard: ShardOwnership, backlog: ShardBacklog) -> dict[str, object]:
    return {
        "shard": shard.shard,
        "version": shard.version,
        "owner": shard.owner,
        "claimedAt": shard.claimed_at and shard.claimed_at.isoformat(),
        "timers": backlog.pending,
        "overdue": backlog.overdue,
    }

"""Set up and inspect timer stores."""

from __future__ import annotations

from collections.abc import Iterable

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from eventservice.db.now import db_now
from eventservice.kernel.findings import Severity
from eventservice.management.terminal import Terminal
from timers.stores.factory import build_store
from timers.stores.health import examine_store
from timers.stores.port import NO_CELL, ShardBacklog, ShardOwnership, TimerStore, TimerStoreError

ACTIONS = {
    "migrate": "create the table and its indexes, or what is missing of them",
    "check": "check the server, the table and the clock; the exit code is 1 if there is an error",
    "status": "show namespaces, processes, and shards with their owners and timers, which are all counted",
}


class Command(BaseCommand):
    help = "Set up and inspect the timer stores in TIMER_STORES."

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        for name, help_text in ACTIONS.items():
            action = actions.add_parser(name, help=help_text)
            action.add_argument("name", help="name of the store in TIMER_STORES")
            if name != "migrate":
                action.add_argument("--json", action="store_true", dest="as_json", help="print JSON")

    def handle(self, *args: object, action: str, name: str, **options: object) -> None:
        terminal = Terminal(self, as_json=bool(options.get("as_json")))
        store = _build_named_store(name)
        try:
            getattr(self, f"run_{action}")(name, store, terminal)
        except TimerStoreError as error:
            raise CommandError(str(error)) from error
        finally:
            store.close()

    def run_migrate(self, name: str, store: TimerStore, terminal: Terminal) -> None:
        store.migrate()
        self.stdout.write(f"The timer store {name} has its table and indexes.")

    def run_check(self, name: str, store: TimerStore, terminal: Terminal) -> None:
        findings = examine_store(name, store, db_now)
        if terminal.as_json:
            terminal.json([{"code": f.code, "severity": f.severity, "text": f.text} for f in findings])
        else:
            for finding in findings:
                terminal.line(finding.severity, finding.text, finding.remedy)
        if any(finding.severity is Severity.ERROR for finding in findings):
            raise SystemExit(1)

    def run_status(self, name: str, store: TimerStore, terminal: Terminal) -> None:
        namespaces, members = store.namespaces(), store.members()
        numbers = range(max((declared.num_shards for declared in namespaces), default=0))
        shards = list(zip(store.shards(numbers), store.count_timers(numbers, db_now()), strict=True))
        size = store.measure_bytes()
        if terminal.as_json:
            terminal.json(
                {
                    "bytes": size,
                    "namespaces": [
                        {"namespace": str(declared.namespace), "numShards": declared.num_shards}
                        for declared in namespaces
                    ],
                    "processes": [{"id": str(member.id), "heartbeats": member.beats} for member in members],
                    "shards": [_build_document(*shard) for shard in shards],
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
            ["shard", "version", "owner", "timers", "overdue"],
            _list_used_shards(shards),
            empty="No shard has been claimed, and none has timers.",
        )


def _build_named_store(name: str) -> TimerStore:
    specs = {spec.name: spec for spec in settings.TIMER_STORES}
    if name not in specs:
        known = ", ".join(specs) or "none"
        raise CommandError(f"TIMER_STORES has no store {name!r}. It has: {known}.")
    try:
        return build_store(specs[name], NO_CELL)
    except ValueError as problem:
        raise CommandError(f"TIMER_STORES: {problem}.") from None


def _list_used_shards(shards: Iterable[tuple[ShardOwnership, ShardBacklog]]) -> list[list[object]]:
    return [
        [shard.shard, shard.version, shard.owner or "nobody", backlog.pending, backlog.overdue]
        for shard, backlog in shards
        if shard.version or backlog.pending
    ]


def _build_document(shard: ShardOwnership, backlog: ShardBacklog) -> dict[str, object]:
    return {
        "shard": shard.shard,
        "version": shard.version,
        "owner": shard.owner,
        "claimedAt": shard.claimed_at and shard.claimed_at.isoformat(),
        "timers": backlog.pending,
        "overdue": backlog.overdue,
    }

"""Submit sample calls to a running system: calls that succeed, fail, are retried, or wait."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from datetime import timedelta

from django.core.management.base import BaseCommand, CommandError, CommandParser
from rich.console import Console
from rich.live import Live
from rich.table import Table

from eventservice.management.commands.up import DEMO
from eventservice.management.database import name_database
from eventservice.management.ports import HOST
from eventservice.management.profile import find_target_port
from eventservice.management.terminal import parse_duration_argument
from eventservice.operators.audit_log import CommandLine, record_action
from eventservice.tenants.models import Tenant
from orchestration.commands import RequestSpec, SubmitServiceCall
from orchestration.lifecycle import submit
from orchestration.models import ServiceCall
from orchestration.retries import RetryPolicy
from timers.membership import list_live_node_ids
from timers.models import NodeRole

QUICK = RetryPolicy(max_attempts=4, initial_interval=1.0, max_interval=2.0)

# name, path at the mock target, seconds until due, retry policy
KINDS: list[tuple[str, str, float, RetryPolicy | None]] = [
    ("send receipt", "/ok", 0, None),
    ("remind customer", "/ok", 5, None),
    ("slow report", "/delay/2", 0, None),
    ("flaky partner", "/flaky/2", 0, QUICK),
    ("refused payment", "/status/402", 0, QUICK),
    ("broken partner", "/status/503", 0, QUICK),
    ("next year's invoice", "/ok", 365 * 86_400, None),
]


class Command(BaseCommand):
    help = "Submit sample calls to the running system (make run) and watch them."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--each", type=int, default=5, help="number of calls of each kind (default: 5)")
        parser.add_argument(
            "--for",
            type=parse_duration_argument,
            default="15s",
            dest="duration",
            help="how long to watch (default: 15s)",
        )

    def handle(self, *args: object, each: int, duration: timedelta, **options: object) -> None:
        tenant = Tenant.objects.filter(name=DEMO).first()
        if tenant is None or not list_live_node_ids(NodeRole.ENGINE):
            raise CommandError(
                f"No engine is running on {name_database()}. Start the system with `make run` first."
            )
        target = f"http://{HOST}:{find_target_port(tenant.tenant_id)}"
        self.stdout.write(f"The calls go to the mock target at {target}.")
        commands = [_build_command(tenant.tenant_id, target, *kind) for kind in KINDS for _ in range(each)]
        record_action(
            CommandLine(), "submit", tenant_id=tenant.pk, subject="sample calls", calls=len(commands)
        )
        submit(commands)
        _watch(tenant.tenant_id, [command.service_call_id for command in commands], duration.total_seconds())


def _build_command(
    tenant_id: uuid.UUID, target: str, name: str, path: str, delay: float, policy: RetryPolicy | None
) -> SubmitServiceCall:
    request = RequestSpec("POST", target + path, {"X-Demo": "yes"}, {"from": "demo"})
    return SubmitServiceCall(
        tenant_id,
        name,
        request,
        delay=timedelta(seconds=delay),
        tags=frozenset({"demo"}),
        retry_policy=policy,
    )


def _watch(tenant_id: uuid.UUID, ids: list[uuid.UUID], seconds: float) -> None:
    end = time.monotonic() + seconds
    with Live(_build_table(tenant_id, ids), console=Console(), refresh_per_second=4) as live:
        while time.monotonic() < end:
            time.sleep(0.5)
            live.update(_build_table(tenant_id, ids))


def _build_table(tenant_id: uuid.UUID, ids: list[uuid.UUID]) -> Table:
    calls = ServiceCall.objects.for_tenant(tenant_id).filter(service_call_id__in=ids)
    counts = Counter(calls.values_list("name", "status"))
    attempts = Counter[str]()
    for name, attempt in calls.values_list("name", "attempt"):
        attempts[name] += attempt
    table = Table("call", "Scheduled", "Running", "Succeeded", "Failed", "attempts")
    for name, *_ in KINDS:
        states = [str(counts[name, state] or "") for state in ("Scheduled", "Running", "Succeeded", "Failed")]
        table.add_row(name, *states, str(attempts[name]))
    return table

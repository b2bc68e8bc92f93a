from __future__ import annotations

import time
import uuid
from argparse import ArgumentTypeError
from datetime import timedelta
from itertools import islice
from random import Random

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from eventservice.db.now import db_now, pin_time
from eventservice.devtools.demo.backfill import Backfill
from eventservice.devtools.demo.simulation import WEEK, World
from eventservice.devtools.demo.tenants import (
    ensure_sample_tenants,
    find_sample_tenants,
    retire_keys,
    use_keys,
)
from eventservice.devtools.demo.workload import Planner
from eventservice.kernel.ids import new_id
from eventservice.management.commands.up import DEMO
from eventservice.management.ports import HOST
from eventservice.management.profile import find_target_port
from eventservice.operators.audit_log import CommandLine, record_action
from eventservice.tenants.models import Tenant
from execution.url_rules import BadUrl, parse_target
from orchestration.statistics.rollup import forget_rollups, roll_up

# Calls per transaction. It takes a third of a second, for which a running engine waits.
BATCH_SIZE = 200
# On SQLite, processes that wait for the write lock retry at intervals. The pause lets them acquire it.
PAUSE_SECONDS = 0.03
ROLL_UP_SECONDS = 10.0


class Command(BaseCommand):
    help = (
        "Create one week of sample history for three tenants: calls that succeed, fail, are retried, scheduled and"
        " canceled, an outage and a dead host. Calls of the past are not sent; pending calls go to the mock target of"
        " `manage.py up`. A second run needs --again, which adds another week to the same tenants."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--calls",
            type=int,
            default=7000,
            help="approximate number of calls in the past week (default: 7000)",
        )
        parser.add_argument(
            "--target",
            type=_parse_target,
            help="base URL for pending calls (default: the mock target of the running system)",
        )
        parser.add_argument("--seed", type=int, default=7, help="seed of the random generator (default: 7)")
        parser.add_argument("--again", action="store_true", help="add to the sample tenants if they exist")
        parser.add_argument("--yes", action="store_true", help="run in production, too")

    def handle(
        self,
        *args: object,
        calls: int,
        target: str | None,
        seed: int,
        again: bool,
        yes: bool,
        **options: object,
    ) -> None:
        if settings.PRODUCTION and not yes:
            raise CommandError("This is a production system. Use --yes to create sample data anyway.")
        if find_sample_tenants() and not again:
            raise CommandError(
                "The sample tenants exist already. `seed_demo --again` adds another week to them."
            )
        target = target or _find_target()
        self.stdout.write(f"Pending calls go to {target}.")
        record_action(CommandLine(), "seed-demo", subject="sample tenants", calls=calls)
        began = time.monotonic()
        world = World(db_now(), Random(seed))  # noqa: S311 (made-up data, not a secret)
        tenants = _create_tenants(world)
        plans = iter(Planner(tenants, world, target).plans(calls))
        backfill = Backfill(world, target, (new_id(), new_id()))
        while batch := list(islice(plans, BATCH_SIZE)):
            backfill.run(batch)
            time.sleep(PAUSE_SECONDS)
        for tenant_id in tenants.values():
            forget_rollups(tenant_id)
        # The running system completes what is not done within this time.
        roll_up(ROLL_UP_SECONDS)
        self.stdout.write(
            f"Created {backfill.calls} calls of {len(tenants)} tenants in {time.monotonic() - began:.1f} s."
        )


def _parse_target(text: str) -> str:
    try:
        parse_target(text)
    except BadUrl as error:
        raise ArgumentTypeError(f"{text!r} is not a URL such as http://127.0.0.1:9000: {error}") from None
    return text.rstrip("/")


def _find_target() -> str:
    demo = Tenant.objects.filter(name=DEMO).first()
    return f"http://{HOST}:{find_target_port(demo.tenant_id if demo else None)}"


def _create_tenants(world: World) -> dict[str, uuid.UUID]:
    """Create the tenants as if some weeks ago, with API keys that were used until now."""
    with pin_time(world.now - WEEK - timedelta(days=20)):
        tenants = ensure_sample_tenants()
    for act, ago in (
        (use_keys, timedelta(days=9)),
        (retire_keys, timedelta(days=9)),
        (use_keys, timedelta(minutes=4)),
    ):
        with pin_time(world.now - ago):
            act(tenants.values())
    return tenants

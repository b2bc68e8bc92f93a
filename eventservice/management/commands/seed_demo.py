"""A week of made-up calls, so that a first look shows a living system."""

from __future__ import annotations

import time
import uuid
from argparse import ArgumentTypeError
from datetime import timedelta
from itertools import islice
from random import Random
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from eventservice.db.now import db_now, pin_time
from eventservice.devtools.demo.backfill import Past
from eventservice.devtools.demo.simulation import WEEK, World
from eventservice.devtools.demo.tenants import found, retire_keys, settle, use_keys
from eventservice.devtools.demo.workload import Planner
from eventservice.kernel.ids import new_id
from execution.url_rules import BadUrl, parse_target
from orchestration.statistics.rollup import recount, roll_up

# Lives in one transaction: a third of a second, for which a running engine waits.
TOGETHER = 200
# On SQLite whoever waits for the write lock asks for it now and then: this is when they get it.
PAUSE_SECONDS = 0.03
ROLL_UP_SECONDS = 10.0


class Command(BaseCommand):
    help = (
        "Write a week of made-up calls of three tenants, as the system would have written it: succeeding, failing,"
        " retrying, scheduled, canceled, an outage and a dead host. Nothing of the past is sent; what is still to"
        " come goes to the mock target of `manage.py up`. A second run is refused without --again, which adds"
        " another week's calls to the same tenants."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        target = f"http://127.0.0.1:{settings.TARGET_PORT}"
        parser.add_argument("--calls", type=int, default=7000, help="of the past week, more or less")
        parser.add_argument(
            "--target", type=_origin, default=target, help="the mock target, to which pending calls go"
        )
        parser.add_argument("--seed", type=int, default=7, help="another number makes another week")
        parser.add_argument("--again", action="store_true", help="also when the made-up tenants exist")
        parser.add_argument("--yes", action="store_true", help="also in production")

    def handle(
        self, *args: Any, calls: int, target: str, seed: int, again: bool, yes: bool, **options: Any
    ) -> None:
        if settings.PRODUCTION and not yes:
            raise CommandError(
                "This is a production system: made-up calls belong into another one. (--yes: do it.)"
            )
        if found() and not again:
            raise CommandError(
                "The made-up tenants are here already. `seed_demo --again` adds another week to them."
            )
        began = time.monotonic()
        world = World(db_now(), Random(seed))  # noqa: S311 (made-up data, not a secret)
        tenants = _set_the_scene(world)
        plans = iter(Planner(tenants, world, target).plans(calls))
        past = Past(world, target, (new_id(), new_id()))
        while some := list(islice(plans, TOGETHER)):
            past.live(some)
            time.sleep(PAUSE_SECONDS)
        for tenant_id in tenants.values():
            recount(tenant_id)
        # What does not get done in this time, the running system's rounds do.
        roll_up(ROLL_UP_SECONDS)
        self.stdout.write(
            f"{past.calls} calls of {len(tenants)} tenants in {time.monotonic() - began:.1f} s."
        )


def _origin(text: str) -> str:
    try:
        parse_target(text)
    except BadUrl as wrong:
        raise ArgumentTypeError(f"{text!r} is no target such as http://127.0.0.1:9000: {wrong}") from None
    return text.rstrip("/")


def _set_the_scene(world: World) -> dict[str, uuid.UUID]:
    """The tenants, made some weeks ago, and their keys, in use until now."""
    with pin_time(world.now - WEEK - timedelta(days=20)):
        tenants = settle()
    for act, ago in (
        (use_keys, timedelta(days=9)),
        (retire_keys, timedelta(days=9)),
        (use_keys, timedelta(minutes=4)),
    ):
        with pin_time(world.now - ago):
            act(tenants.values())
    return tenants

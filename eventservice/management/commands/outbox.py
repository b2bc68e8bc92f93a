"""Inspect and manage events."""

from __future__ import annotations

from argparse import ArgumentTypeError
from datetime import UTC, datetime, timedelta

from django.core.management.base import BaseCommand, CommandError, CommandParser

from eventservice.api.formats import parse_duration
from eventservice.db.now import db_now
from eventservice.kernel.text import escape_invisible
from eventservice.management.commands.tenant import get_tenant_argument
from eventservice.management.terminal import parse_duration_argument
from eventservice.operators.formatting import format_count
from outbox.parking import list_parked_events, skip, unpark
from outbox.replay import replay
from outbox.retention import prune
from outbox.status import get_status


def parse_time_argument(text: str) -> datetime | timedelta:
    """Parse a timestamp (2026-03-01T12:00:00Z) or the time since then (2h)."""
    if parse_duration(text) is not None:
        return parse_duration_argument(text)
    try:
        instant = datetime.fromisoformat(text)
        return instant.astimezone(UTC) if instant.tzinfo else instant.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise ArgumentTypeError(
            f"{text!r} is neither an ISO 8601 timestamp nor a duration such as 2h"
        ) from None


class Command(BaseCommand):
    help = "Inspect and manage events: status, parked events, replay, retention."

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        actions.add_parser("status", help="show the backlog and the active dispatchers")
        actions.add_parser("parked", help="list events that could not be published")
        for name, help_text in (
            ("retry", "publish a parked event again"),
            ("skip", "give up a parked event without publishing it"),
        ):
            actions.add_parser(name, help=help_text).add_argument(
                "id", type=int, help="event id, as listed by `parked`"
            )
        replaying = actions.add_parser("replay", help="publish events again, with the same event ids")
        replaying.add_argument(
            "--since",
            type=parse_time_argument,
            required=True,
            help="ISO 8601 timestamp, or duration such as 2h",
        )
        replaying.add_argument("--tenant", help="name or id of a tenant (default: all tenants)")
        pruning = actions.add_parser("prune", help="delete published events and finished webhook deliveries")
        pruning.add_argument("--older-than", type=parse_duration_argument, required=True, metavar="30d")
        pruning.add_argument(
            "--limit", type=int, default=100_000, help="maximum number of rows to delete (default: 100000)"
        )

    def handle(self, *args: object, action: str, **options: object) -> None:
        getattr(self, f"run_{action}")(**options)

    def run_status(self, **options: object) -> None:
        current = get_status()
        age = f" (oldest: {current.lag.total_seconds():.1f} s ago)" if current.unpublished else ""
        self.stdout.write(f"unpublished          {current.unpublished}{age}")
        behind = current.waiting_behind_parked
        verb = "waits" if behind == 1 else "wait"
        held = f" ({format_count(behind, 'event')} {verb} behind them)" if behind else ""
        self.stdout.write(f"parked               {current.parked}{held}")
        self.stdout.write(f"webhooks to deliver  {current.pending_deliveries}")
        for owner, count in current.partitions_by_owner.items():
            self.stdout.write(f"dispatcher {owner}  {format_count(count, 'partition')}")
        if current.unowned_partitions:
            self.stdout.write(f"no dispatcher        {format_count(current.unowned_partitions, 'partition')}")

    def run_parked(self, **options: object) -> None:
        for event in list_parked_events().iterator(chunk_size=500):
            aggregate = f"{event.tenant_id}/{event.aggregate_id}#{event.aggregate_seq}"
            self.stdout.write(
                f"{event.id}  {event.parked_at:%Y-%m-%d %H:%M:%S}  {event.event_type}  {aggregate}"
            )
            self.stdout.write(escape_invisible(f"    {event.last_error}"))

    def run_retry(self, *, id: int, **options: object) -> None:
        if not unpark(id):
            raise CommandError(f"Event {id} is not parked. `manage.py outbox parked` lists parked events.")
        self.stdout.write(f"Event {id} will be published again, followed by the events behind it.")

    def run_skip(self, *, id: int, **options: object) -> None:
        if not skip(id):
            raise CommandError(f"Event {id} is not parked. `manage.py outbox parked` lists parked events.")
        self.stdout.write(f"Event {id} was skipped. The events behind it will be published.")

    def run_replay(self, *, since: datetime | timedelta, tenant: str | None, **options: object) -> None:
        start = db_now() - since if isinstance(since, timedelta) else since
        tenant_id = None if tenant is None else get_tenant_argument(tenant).tenant_id
        self.stdout.write(f"{format_count(replay(start, tenant_id), 'event')} will be published again.")

    def run_prune(self, *, older_than: timedelta, limit: int, **options: object) -> None:
        self.stdout.write(f"{format_count(prune(older_than, limit), 'row')} deleted.")

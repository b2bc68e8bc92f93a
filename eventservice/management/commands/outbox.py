"""`manage.py outbox`: what an operator can see and do about events."""

from __future__ import annotations

from argparse import ArgumentTypeError
from datetime import UTC, datetime, timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from eventservice.api.formats import parse_duration
from eventservice.db.now import db_now
from eventservice.management.commands.tenant import tenant_of
from eventservice.management.terminal import length_of_time
from outbox.maintenance import prune, replay
from outbox.parking import list_parked_events, skip, unpark
from outbox.status import get_status


def moment(text: str) -> datetime | timedelta:
    """2026-03-01T12:00:00Z, or how long ago: 2h."""
    if parse_duration(text) is not None:
        return length_of_time(text)
    try:
        instant = datetime.fromisoformat(text)
        return instant.astimezone(UTC) if instant.tzinfo else instant.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise ArgumentTypeError(
            f"{text!r} is neither an ISO 8601 time nor a length of time such as 2h"
        ) from None


class Command(BaseCommand):
    help = "Events that are to be published: what waits, publishing again, retention."

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        actions.add_parser("status", help="what waits, and who is at work")
        actions.add_parser("parked", help="list the events that no publisher would have")
        for name, what in (
            ("retry", "try a parked event again"),
            ("skip", "let a parked event go unpublished"),
        ):
            actions.add_parser(name, help=what).add_argument("id", type=int, help="as `parked` prints it")
        again = actions.add_parser("replay", help="publish again, under the same event ids")
        again.add_argument("--since", type=moment, required=True, help="ISO 8601, or how long ago: 2h")
        again.add_argument("--tenant", help="of this tenant only: its name or id")
        old = actions.add_parser("prune", help="delete published events and finished webhook deliveries")
        old.add_argument("--older-than", type=length_of_time, required=True, metavar="30d")
        old.add_argument("--limit", type=int, default=100_000, help="rows at most (100000)")

    def handle(self, *args: Any, action: str, **options: Any) -> None:
        getattr(self, f"_{action}")(**options)

    def _status(self, **options: Any) -> None:
        now = get_status()
        self.stdout.write(
            f"unpublished          {now.unpublished} (the oldest for {now.lag.total_seconds():.1f} s)"
        )
        self.stdout.write(
            f"parked               {now.parked}, and {now.waiting_behind_parked} wait behind them"
        )
        self.stdout.write(f"webhooks to deliver  {now.pending_deliveries}")
        for owner, count in now.partitions_of.items():
            self.stdout.write(f"dispatcher {owner}  {count} partitions")
        if now.unowned_partitions:
            self.stdout.write(f"no dispatcher        {now.unowned_partitions} partitions")

    def _parked(self, **options: Any) -> None:
        for event in list_parked_events().iterator(chunk_size=500):
            aggregate = f"{event.tenant_id}/{event.aggregate_id}#{event.aggregate_seq}"
            self.stdout.write(
                f"{event.id}  {event.parked_at:%Y-%m-%d %H:%M:%S}  {event.event_type}  {aggregate}"
            )
            self.stdout.write(f"    {event.last_error}")

    def _retry(self, *, id: int, **options: Any) -> None:
        if not unpark(id):
            raise CommandError(f"No event {id} is parked: see `manage.py outbox parked`.")
        self.stdout.write(f"Event {id} is tried again, and those behind it follow.")

    def _skip(self, *, id: int, **options: Any) -> None:
        if not skip(id):
            raise CommandError(f"No event {id} is parked: see `manage.py outbox parked`.")
        self.stdout.write(f"Event {id} is skipped, and those behind it flow again.")

    def _replay(self, *, since: datetime | timedelta, tenant: str | None, **options: Any) -> None:
        start = db_now() - since if isinstance(since, timedelta) else since
        tenant_id = None if tenant is None else tenant_of(tenant).tenant_id
        self.stdout.write(f"{replay(start, tenant_id)} events are published again.")

    def _prune(self, *, older_than: timedelta, limit: int, **options: Any) -> None:
        self.stdout.write(f"{prune(older_than, limit)} rows deleted.")

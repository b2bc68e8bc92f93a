"""Inspect and manage events."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable
from datetime import datetime, timedelta
from uuid import UUID

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from eventservice.api.formats import format_duration, format_instant
from eventservice.db.now import db_now
from eventservice.kernel.text import escape_invisible
from eventservice.management.commands.tenant import get_tenant_argument
from eventservice.management.database import name_database
from eventservice.management.terminal import add_age_arguments, parse_time_argument, require_confirmed_age
from eventservice.operators.audit_log import CommandLine, record_action, run_audited
from eventservice.operators.formatting import format_count
from outbox.broker_queue import discard_queue, has_queue
from outbox.models import OutboxEvent
from outbox.parking import find_parked_key, find_refusing_publisher, list_parked_events, skip, unpark
from outbox.publisher_spec import list_names
from outbox.queries import find_event
from outbox.replay import replay
from outbox.retention import prune
from outbox.status import get_status

# Of the largest number that the databases store. An id has 32 digits or more.
MAX_KEY_DIGITS = 18


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
                "id",
                type=_parse_event,
                help="the event's number or id, as `parked`, the API and the console show it",
            )
        discarding = actions.add_parser(
            "discard", help="delete the events that wait for a publisher which PUBLISHERS no longer names"
        )
        discarding.add_argument("publisher", help="name of the publisher, as `status` shows it")
        replaying = actions.add_parser("replay", help="publish events again, with the same event ids")
        replaying.add_argument(
            "--since",
            type=parse_time_argument,
            required=True,
            help="ISO 8601 timestamp, or duration such as 2h",
        )
        replaying.add_argument("--tenant", help="name or id of a tenant (default: all tenants)")
        pruning = actions.add_parser("prune", help="delete published events and finished webhook deliveries")
        add_age_arguments(pruning)
        pruning.add_argument(
            "--limit", type=int, default=100_000, help="maximum number of rows to delete (default: 100000)"
        )

    def handle(self, *args: object, action: str, **options: object) -> None:
        getattr(self, f"run_{action}")(**options)

    def run_status(self, **options: object) -> None:
        current = get_status()
        self.stdout.write(f"database             {name_database()}")
        age = f" (oldest: {current.lag.total_seconds():.1f} s ago)" if current.unpublished else ""
        self.stdout.write(f"unpublished          {current.unpublished}{age}")
        behind = current.waiting_behind_parked
        verb = "waits" if behind == 1 else "wait"
        held = f" ({format_count(behind, 'event')} {verb} behind them)" if behind else ""
        self.stdout.write(f"parked               {current.parked}{held}")
        self.stdout.write(f"webhooks to deliver  {current.pending_deliveries}")
        for backlog in current.broker_backlogs:
            error = escape_invisible(f": {backlog.last_error}") if backlog.last_error else ""
            self.stdout.write(
                f"broker {backlog.publisher}  {backlog.count} (oldest: {backlog.lag.total_seconds():.1f} s ago){error}"
            )
        for owner, count in current.partitions_by_owner.items():
            self.stdout.write(f"dispatcher {owner}  {format_count(count, 'partition')}")
        if current.unowned_partitions:
            self.stdout.write(f"no dispatcher        {format_count(current.unowned_partitions, 'partition')}")

    def run_parked(self, **options: object) -> None:
        event = None
        for event in list_parked_events().iterator(chunk_size=500):
            aggregate = f"{event.tenant_id}/{event.aggregate_id}#{event.aggregate_seq}"
            self.stdout.write(
                f"{event.id}  {event.event_id}  {event.parked_at:%Y-%m-%d %H:%M:%S}  {event.event_type}  {aggregate}"
            )
            self.stdout.write(escape_invisible(f"    {event.last_error}"))
        if event is None:
            self.stdout.write(f"No event is parked in {name_database()}.")
        else:
            self.stdout.write(
                "Remove the cause, then publish an event and those behind it: `manage.py outbox retry ID`. To give an event up:"
                " `manage.py outbox skip ID`."
            )

    def run_retry(self, *, id: int | UUID, **options: object) -> None:
        event = _resolve("event-retry", id, unpark)
        self.stdout.write(f"Event {id} will be published again, followed by the events behind it.")
        refused_by = find_refusing_publisher(event)
        if refused_by is None:
            return
        self.stdout.write(f"It was parked because the publisher {refused_by} refused it.")
        if refused_by not in list_names(settings.PUBLISHERS):
            self.stderr.write(
                f"Warning: PUBLISHERS of this process does not name {refused_by!r}. Unless it does where the dispatchers run,"
                f" that publisher gets neither this event nor those behind it. Add it to PUBLISHERS, restart all clusters, and"
                " run `manage.py outbox replay --since`."
            )

    def run_skip(self, *, id: int | UUID, **options: object) -> None:
        _resolve("event-skip", id, skip)
        self.stdout.write(f"Event {id} was skipped. The events behind it will be published.")

    def run_discard(self, *, publisher: str, **options: object) -> None:
        if publisher in {spec.name for spec in settings.PUBLISHERS}:
            raise CommandError(f"PUBLISHERS names {publisher!r}: its events are still being published.")
        if not has_queue(publisher):
            raise CommandError(
                f"There is no queue of a publisher {publisher!r}. `manage.py outbox status` lists them."
            )
        record_action(CommandLine(), "queue-discard", subject="outbox", publisher=publisher)
        self.stdout.write(f"{format_count(discard_queue(publisher), 'event')} discarded.")

    def run_replay(self, *, since: datetime | timedelta, tenant: str | None, **options: object) -> None:
        start = db_now() - since if isinstance(since, timedelta) else since
        tenant_id = None if tenant is None else get_tenant_argument(tenant).tenant_id
        record_action(
            CommandLine(),
            "events-replay",
            tenant_id=tenant_id,
            subject="outbox",
            since=format_instant(start),
        )
        self.stdout.write(f"{format_count(replay(start, tenant_id), 'event')} will be published again.")

    def run_prune(self, *, older_than: timedelta, yes: bool, limit: int, **options: object) -> None:
        require_confirmed_age(older_than, yes)
        record_action(
            CommandLine(),
            "outbox-prune",
            subject="outbox",
            olderThan=format_duration(older_than.total_seconds()),
            limit=limit,
        )
        events, deliveries = prune(older_than, limit)
        self.stdout.write(
            f"Deleted {format_count(events, 'event')} and"
            f" {format_count(deliveries, 'webhook delivery', 'webhook deliveries')}."
        )


def _resolve(action: str, named: int | UUID, command: Callable[[int], bool]) -> OutboxEvent:
    """Run a command on a parked event and record it. Return the event as it was. Raise CommandError if it is not parked."""
    key = find_parked_key(named) if isinstance(named, UUID) else named
    event = None if key is None else find_event(key)
    if event is None or not run_audited(
        CommandLine(),
        action,
        lambda: command(event.id),
        changed=bool,
        tenant_id=event.tenant_id,
        subject=event.id,
        type=event.event_type,
    ):
        raise CommandError(
            f"Event {named} is not parked in {name_database()}. `manage.py outbox parked` lists parked events."
        )
    return event


def _parse_event(text: str) -> int | UUID:
    """Parse the number of an event, or its id. A number has fewer characters than any id."""
    if text.isascii() and text.isdecimal() and len(text) <= MAX_KEY_DIGITS:
        return int(text)
    try:
        return UUID(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is neither an event's number nor its id") from None

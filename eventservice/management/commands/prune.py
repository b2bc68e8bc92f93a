from datetime import timedelta

from django.core.management.base import BaseCommand, CommandParser

from eventservice.api.formats import format_duration
from eventservice.management.database import name_database
from eventservice.management.terminal import add_age_arguments, require_confirmed_age
from eventservice.operators.audit_log import CommandLine, record_action
from eventservice.operators.formatting import format_count
from orchestration.lifecycle import prune_calls
from outbox.retention import prune as prune_events


class Command(BaseCommand):
    help = "Delete old data: finished calls with their timers and attempts, published events and completed webhook deliveries."

    def add_arguments(self, parser: CommandParser) -> None:
        add_age_arguments(parser)
        parser.add_argument(
            "--limit",
            type=int,
            default=100_000,
            help="maximum number of calls to delete, and of events and webhook deliveries together (default: 100000)",
        )

    def handle(self, *args: object, older_than: timedelta, yes: bool, limit: int, **options: object) -> None:
        require_confirmed_age(older_than, yes)
        # Recorded before it begins: it works in many transactions, and may be interrupted.
        age = format_duration(older_than.total_seconds())
        record_action(CommandLine(), "prune", subject="retention", olderThan=age, limit=limit)
        calls = prune_calls(older_than, limit)
        events, deliveries = prune_events(older_than, limit)
        self.stdout.write(
            f"Deleted {format_count(calls, 'call')}, {format_count(events, 'event')} and"
            f" {format_count(deliveries, 'webhook delivery', 'webhook deliveries')} in {name_database()}."
        )

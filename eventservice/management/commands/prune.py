from datetime import timedelta

from django.core.management.base import BaseCommand, CommandParser

from eventservice.management.terminal import parse_duration_argument
from orchestration.lifecycle import prune_calls
from outbox.retention import prune as prune_events


class Command(BaseCommand):
    help = "Delete old data: finished calls with their timers and attempts, and published events."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--older-than",
            type=parse_duration_argument,
            required=True,
            help="minimum age, such as 30d or 12h",
        )
        parser.add_argument(
            "--limit",
            type=int,
            default=100_000,
            help="maximum number of rows of each kind to delete (default: 100000)",
        )

    def handle(self, *args: object, older_than: timedelta, limit: int, **options: object) -> None:
        calls = prune_calls(older_than, limit)
        events = prune_events(older_than, limit)
        self.stdout.write(f"Deleted {calls} calls and {events} events.")

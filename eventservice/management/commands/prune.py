from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from eventservice.management.terminal import length_of_time
from orchestration.lifecycle import prune_calls
from outbox.maintenance import prune as prune_events


class Command(BaseCommand):
    help = (
        "Delete what has ended long ago: calls with their timers and attempts, and events that are published."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--older-than", type=length_of_time, default=timedelta(days=30), help="such as 30d or 12h"
        )
        parser.add_argument("--limit", type=int, default=100_000, help="of each, at the most")

    def handle(self, *args: Any, older_than: timedelta, limit: int, **options: Any) -> None:
        calls = prune_calls(older_than, limit)
        events = prune_events(older_than, limit)
        self.stdout.write(f"{calls} calls and {events} events deleted.")

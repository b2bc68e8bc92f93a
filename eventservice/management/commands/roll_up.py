from __future__ import annotations

from datetime import timedelta

from django.core.management.base import BaseCommand, CommandParser

from eventservice.management.terminal import parse_duration_argument
from orchestration.statistics.rollup import roll_up
from orchestration.statistics.storage import measure_storage
from timers.shard_sizes import measure_shard_sizes


class Command(BaseCommand):
    help = "Update the statistics for the charts of the console, and measure what tenants store and shards hold. A running cluster does this every minute."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--for",
            type=parse_duration_argument,
            default="30s",
            dest="duration",
            help="maximum duration of the run (default: 30s)",
        )

    def handle(self, *args: object, duration: timedelta, **options: object) -> None:
        complete = roll_up(duration.total_seconds())
        measure_storage(duration.total_seconds())
        measure_shard_sizes(duration.total_seconds())
        self.stdout.write(
            "The statistics are up to date."
            if complete
            else "The statistics are incomplete. Run this command again."
        )

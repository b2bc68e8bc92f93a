"""The figures of the console's charts, where no cluster counts them each minute."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from eventservice.management.terminal import length_of_time
from orchestration.statistics.rollup import roll_up


class Command(BaseCommand):
    help = (
        "Count what has become of the calls, for the console's charts. A running cluster does it by itself."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--for", type=length_of_time, default="30s", dest="most", help="at most so long: 30s"
        )

    def handle(self, *args: Any, most: timedelta, **options: Any) -> None:
        whole = roll_up(most.total_seconds())
        self.stdout.write(
            "All that has ended is counted." if whole else "There is more to count: run it again."
        )

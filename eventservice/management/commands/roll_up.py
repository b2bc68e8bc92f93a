"""The figures of the console's charts, where no cluster counts them each minute."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from eventservice.management.terminal import number
from orchestration.public import roll_up


class Command(BaseCommand):
    help = (
        "Count what has become of the calls, for the console's charts. A running cluster does it by itself."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--seconds", type=number(0, 1e9), default=30.0, help="how long it may take")

    def handle(self, *args: Any, seconds: float, **options: Any) -> None:
        whole = roll_up(seconds)
        self.stdout.write(
            "All that has ended is counted." if whole else "There is more to count: run it again."
        )

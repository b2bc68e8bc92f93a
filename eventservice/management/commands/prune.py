from argparse import ArgumentTypeError
from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from orchestration.public import prune_calls
from outbox.public import prune as prune_events


class Command(BaseCommand):
    help = (
        "Delete what has ended long ago: calls with their timers and attempts, and events that are published."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--older-than", type=_duration, default=timedelta(days=30), help="such as 30d or 12h"
        )
        parser.add_argument("--limit", type=int, default=100_000, help="of each, at the most")

    def handle(self, *args: Any, older_than: timedelta, limit: int, **options: Any) -> None:
        calls = prune_calls(older_than, limit)
        events = prune_events(older_than, limit)
        self.stdout.write(f"{calls} calls and {events} events deleted.")


UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def _duration(text: str) -> timedelta:
    if text[-1:] not in UNITS or not text[:-1].isdecimal():
        raise ArgumentTypeError(f"{text!r} is not a number and one of s, m, h, d, w")
    return timedelta(**{UNITS[text[-1]]: int(text[:-1])})

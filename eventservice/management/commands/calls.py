from __future__ import annotations

import time
from argparse import ArgumentTypeError
from datetime import timedelta

from django.core.management.base import CommandParser

from eventservice.client import Client, Json
from eventservice.management.terminal import ApiCommand, Options, ignore_case, parse_positive_duration
from eventservice.operators.error_kinds import get_error_name
from orchestration.states import Status

# The largest page that the API returns.
MAX_PAGE_SIZE = 200
FILTERS = ("status", "retrying", "tag", "host", "name", "sort")
COLUMNS = ("id", "name", "status", "due", "attempts", "outcome", "tags")


class Command(ApiCommand):
    help = "List service calls, newest first."

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        statuses = [status.value for status in Status]
        parser.add_argument("--status", action="append", type=ignore_case(statuses), choices=statuses)
        parser.add_argument(
            "--retrying",
            action="store_const",
            const="true",
            help="only calls that wait for another attempt",
        )
        parser.add_argument("--tag", action="append")
        parser.add_argument("--host", help="the host that is called, or host:port")
        parser.add_argument("--name", help="the whole name")
        parser.add_argument("--sort", choices=("submittedAt", "-submittedAt", "dueAt", "-dueAt"))
        parser.add_argument(
            "--limit", type=_parse_limit, default=20, help="how many calls to show (default: %(default)s)"
        )
        parser.add_argument(
            "--watch",
            type=parse_positive_duration,
            nargs="?",
            const=timedelta(seconds=2),
            metavar="2s",
            help="repeat with this interval (default: 2s)",
        )

    def run(self, client: Client, options: Options) -> None:
        filters = {name: options[name] for name in FILTERS if options[name]}
        while True:
            limit = options["limit"]
            # One more than is shown says whether there are more.
            calls = client.list(limit=min(limit + 1, MAX_PAGE_SIZE), max_items=limit + 1, **filters)
            self._show(list(calls), limit, clear=bool(options["watch"]))
            if not options["watch"]:
                return
            time.sleep(options["watch"].total_seconds())

    def _show(self, found: list[Json], limit: int, *, clear: bool) -> None:
        calls = found[:limit]
        if self.terminal.as_json:
            self.terminal.json(calls)
            return
        if clear:
            self.terminal.clear()
        rows = [
            (
                call["serviceCallId"], call["name"], call["status"], call["dueAt"], call["attempts"],
                _format_outcome(call["outcome"]), call["tags"],
            )
            for call in calls
        ]  # fmt: skip
        self.terminal.table(COLUMNS, rows, empty="No calls match these filters.", cut=("name", "tags"))
        if len(found) > limit:
            self.stdout.write(f"There are more than these {limit}: see --limit.")


def _parse_limit(text: str) -> int:
    if text.isdecimal() and int(text):
        return int(text)
    raise ArgumentTypeError(f"{text!r} is not a positive integer")


def _format_outcome(outcome: Json | None) -> str:
    if outcome is None:
        return ""
    return (
        get_error_name(outcome["errorKind"], outcome["status"])
        if outcome["errorKind"]
        else str(outcome["status"] or "")
    )

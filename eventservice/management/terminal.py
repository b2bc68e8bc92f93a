"""What the operators' commands share: the API they speak to, how they show things, and how they end.

Exit codes: 0 done · 1 refused by the service (or the call that was waited for did not succeed) · 2 wrong usage
· 3 the service cannot be reached.
"""

from __future__ import annotations

import json
import os
import uuid
from argparse import ArgumentTypeError
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from io import StringIO
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from eventservice.api.formats import parse_duration
from eventservice.api.problems import FieldError
from eventservice.client import ApiError, Client, Unreachable, Unsendable

REFUSED, USAGE, UNREACHABLE = 1, 2, 3
COLOURS = {
    "Scheduled": "cyan",
    "Running": "yellow",
    "Succeeded": "green",
    "Failed": "red",
    "Canceled": "magenta",
}
# Nothing here is older; and no database knows a time before the year 1.
LONGEST = timedelta(days=36_500)
# Where no terminal sets a limit: a program that reads a line wants all of it.
WIDEST = 1_000_000
# What is left of a name when there is not room enough.
NARROWEST = 8
# Between two columns.
GAP = 2


class ApiCommand(BaseCommand):
    """A command that speaks to the API as any client does: with a key, for one tenant."""

    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--url",
            default=os.environ.get("EVENTSERVICE_URL") or f"http://127.0.0.1:{settings.PORT}",
            help="where the API is (EVENTSERVICE_URL; else on this machine, at PORT)",
        )
        tenant = os.environ.get("EVENTSERVICE_TENANT")
        parser.add_argument("--tenant", default=tenant, help="its id (EVENTSERVICE_TENANT)")
        key = os.environ.get("EVENTSERVICE_KEY")
        parser.add_argument("--key", default=key, help="an API key (EVENTSERVICE_KEY)")
        parser.add_argument("--json", action="store_true", help="print what the API answers")

    def handle(self, *args: Any, **options: Any) -> None:
        _refuse_wrong_access(options)
        self.terminal = Terminal(self, as_json=options["json"])
        with Client(options["url"], options["tenant"], options["key"]) as client:
            try:
                self.act(client, options)
            except ApiError as refused:
                raise CommandError(str(refused), returncode=REFUSED) from None
            except Unsendable as wrong:
                raise CommandError(str(wrong), returncode=USAGE) from None
            except Unreachable as broken:
                where = "Is the system running there? EVENTSERVICE_URL or --url says where it is."
                raise CommandError(f"{broken}\n{where}", returncode=UNREACHABLE) from None
            except KeyboardInterrupt:
                return

    def act(self, client: Client, options: Mapping[str, Any]) -> None:
        raise NotImplementedError


class EachCallCommand(ApiCommand):
    """Does one thing to each of some calls, and tells of each at once: what has been done cannot be lost."""

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("id", nargs="+", type=call_id)

    def act(self, client: Client, options: Mapping[str, Any]) -> None:
        calls, refused = [], False
        try:
            for one in options["id"]:
                try:
                    call, told = self.act_on(client, one, options)
                except ApiError as refusal:
                    self.stderr.write(f"{one}: {refusal}")
                    refused = True
                    continue
                calls.append(call)
                if not self.terminal.as_json:
                    self.terminal.line(one, *told)
        finally:
            if self.terminal.as_json:
                self.terminal.json(calls)
        if refused:
            raise SystemExit(REFUSED)

    def act_on(
        self, client: Client, service_call_id: str, options: Mapping[str, Any]
    ) -> tuple[dict[str, Any], Sequence[Any]]:
        """The call that came of it, and what to tell of it beside the id that was given."""
        raise NotImplementedError


def call_id(text: str) -> str:
    return identifier(text, "a service call's id, such as `manage.py calls` shows")


def identifier(text: str, what: str) -> str:
    try:
        return str(uuid.UUID(text))
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not {what}") from None


def length_of_time(text: str, least: timedelta = timedelta(), most: timedelta = LONGEST) -> timedelta:
    """As the API and the console read it."""
    seconds = parse_duration(text)
    if seconds is None:
        raise ArgumentTypeError(f"{text!r} is not a length of time such as 90s, 1h30m or 30d")
    if seconds > most.total_seconds():
        raise ArgumentTypeError(f"{text!r} is longer than {most.days}d")
    if seconds < least.total_seconds():
        raise ArgumentTypeError(f"{text!r} is shorter than {least.total_seconds():g}s")
    return timedelta(seconds=seconds)


# What has to last: of a key, a wait, a pause between two looks.
some_time = partial(length_of_time, least=timedelta(seconds=0.1))


def refuse_wrong(faults: Sequence[FieldError]) -> None:
    """What the rules of the API found in a command's words."""
    if faults:
        told = [f"{fault.pointer.strip('/')} {fault.detail}" for fault in faults]
        raise CommandError("\n".join(told), returncode=REFUSED)


def _refuse_wrong_access(options: Mapping[str, Any]) -> None:
    for name in ("tenant", "key"):
        if not options[name]:
            raise CommandError(f"Give --{name}, or set EVENTSERVICE_{name.upper()}.", returncode=USAGE)
    if urlsplit(options["url"]).scheme not in ("http", "https"):
        raise CommandError(
            f"--url (EVENTSERVICE_URL): {options['url']!r} is not of the form http://host:port",
            returncode=USAGE,
        )
    try:
        identifier(options["tenant"], "a tenant's id, such as `manage.py tenant list` shows")
    except ArgumentTypeError as wrong:
        raise CommandError(f"--tenant (EVENTSERVICE_TENANT): {wrong}", returncode=USAGE) from None


class Terminal:
    def __init__(self, command: BaseCommand, *, as_json: bool) -> None:
        self._write: Callable[..., Any] = command.stdout.write
        self.as_json = as_json
        # What rich draws goes through the command's own output, so that it can be piped and captured.
        self._drawn = StringIO()
        on_terminal = command.stdout.isatty()
        self._unlimited = Console(file=self._drawn, highlight=False, width=WIDEST, force_terminal=on_terminal)
        self.console = (
            Console(file=self._drawn, highlight=False, force_terminal=True)
            if on_terminal
            else self._unlimited
        )

    def json(self, value: Any) -> None:
        self._write(json.dumps(value, indent=2, ensure_ascii=False))

    def line(self, *values: Any) -> None:
        self.draw(Text("  ").join(_shown(value) for value in values), self._unlimited)

    def table(
        self,
        columns: Sequence[str],
        rows: Iterable[Sequence[Any]],
        *,
        empty: str,
        may_be_cut: Collection[str] = (),
    ) -> None:
        """Ids and times stay whole, also where the terminal has to break the line: they are there to be copied."""
        shown = [[_shown(value) for value in row] for row in rows]
        if not shown:
            self._write(empty)
            return
        longest = {
            column: max(cell_len(column), *(row[at].cell_len for row in shown))
            for at, column in enumerate(columns)
        }
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column, width in _fitted(longest, may_be_cut, self.console.width).items():
            table.add_column(column, no_wrap=True, overflow="ellipsis", width=width)
        for row in shown:
            table.add_row(*row)
        self.draw(table, self._unlimited)

    def pairs(self, pairs: Mapping[str, Any]) -> None:
        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in pairs.items():
            if value not in (None, [], {}):
                table.add_row(name, _shown(value))
        self.draw(table)

    def blank(self) -> None:
        self._write("")

    def clear(self) -> None:
        self.console.clear()
        self._write(self._taken(), ending="")

    def draw(self, what: RenderableType, on: Console | None = None) -> None:
        (on or self.console).print(what)
        self._write("\n".join(line.rstrip() for line in self._taken().splitlines()))

    def _taken(self) -> str:
        drawn = self._drawn.getvalue()
        self._drawn.seek(0)
        self._drawn.truncate()
        return drawn


def _fitted(longest: dict[str, int], may_be_cut: Collection[str], room: int) -> dict[str, int]:
    """The width of each column. Those that may be cut share what the others leave, the narrow ones first."""
    widths = dict(longest)
    left = room - GAP * (len(longest) - 1) - sum(w for name, w in longest.items() if name not in may_be_cut)
    flexible = sorted(may_be_cut, key=lambda name: longest[name])
    for at, name in enumerate(flexible):
        widths[name] = min(longest[name], max(NARROWEST, left // (len(flexible) - at)))
        left -= widths[name]
    return widths


def _shown(value: Any) -> Text:
    """Never as markup: a call may be named [/b]."""
    if value is None:
        return Text()
    if isinstance(value, list | tuple):
        return Text(", ".join(str(one) for one in value))
    if isinstance(value, dict):
        return Text(json.dumps(value, ensure_ascii=False))
    return Text(str(value), style=COLOURS.get(str(value), ""))

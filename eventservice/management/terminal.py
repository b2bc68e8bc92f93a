"""What the operators' commands share: the API they speak to, how they show things, and how they end.

Exit codes: 0 done · 1 refused by the service (or the call that was waited for did not succeed) · 2 wrong usage
· 3 the service cannot be reached.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import IO, Any, cast

from django.core.management.base import BaseCommand, CommandError, CommandParser
from rich.console import Console
from rich.table import Table

from eventservice.client import ApiError, Client, Unreachable

REFUSED, UNREACHABLE = 1, 3
COLOURS = {
    "Scheduled": "cyan",
    "Running": "yellow",
    "Succeeded": "green",
    "Failed": "red",
    "Canceled": "magenta",
}


class ApiCommand(BaseCommand):
    """A command that speaks to the API as any client does: with a key, for one tenant."""

    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        url = os.environ.get("EVENTSERVICE_URL", "http://127.0.0.1:8000")
        parser.add_argument("--url", default=url, help="where the API is (EVENTSERVICE_URL)")
        parser.add_argument(
            "--tenant", default=os.environ.get("EVENTSERVICE_TENANT"), help="EVENTSERVICE_TENANT"
        )
        parser.add_argument("--key", default=os.environ.get("EVENTSERVICE_KEY"), help="EVENTSERVICE_KEY")
        parser.add_argument("--json", action="store_true", help="print what the API answers")

    def handle(self, *args: Any, **options: Any) -> None:
        for name in ("tenant", "key"):
            if not options[name]:
                raise CommandError(f"Give --{name}, or set EVENTSERVICE_{name.upper()}.", returncode=2)
        self.terminal = Terminal(self, as_json=options["json"])
        with Client(options["url"], options["tenant"], options["key"]) as client:
            try:
                self.act(client, options)
            except ApiError as refused:
                raise CommandError(str(refused), returncode=REFUSED) from None
            except Unreachable as broken:
                raise CommandError(str(broken), returncode=UNREACHABLE) from None
            except KeyboardInterrupt:
                return

    def act(self, client: Client, options: Mapping[str, Any]) -> None:
        raise NotImplementedError


class Terminal:
    def __init__(self, command: BaseCommand, *, as_json: bool) -> None:
        self._write: Callable[[str], Any] = command.stdout.write
        self.as_json = as_json
        # What rich draws goes through the command's own output, so that it can be piped and captured.
        self.console = Console(file=cast("IO[str]", command.stdout), highlight=False)

    def json(self, value: Any) -> None:
        self._write(json.dumps(value, indent=2, ensure_ascii=False))

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[Any]], *, empty: str) -> None:
        rows = list(rows)
        if not rows:
            self._write(empty)
            return
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in columns:
            table.add_column(column, overflow="fold")
        for row in rows:
            table.add_row(*(_shown(value) for value in row))
        self.console.print(table)

    def pairs(self, pairs: Mapping[str, Any]) -> None:
        table = Table(box=None, show_header=False, pad_edge=False)
        for name, value in pairs.items():
            if value not in (None, [], {}):
                table.add_row(f"[bold]{name}[/]", _shown(value))
        self.console.print(table)


def _shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list | tuple):
        return ", ".join(str(one) for one in value)
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    text = str(value)
    return f"[{COLOURS[text]}]{text}[/]" if text in COLOURS else text.replace("[", r"\[")

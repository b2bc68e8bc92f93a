"""Base classes of the client commands, argument types and terminal output.

Exit codes of client commands: 0 success, 1 refused by the service (or the awaited call did not succeed), 2 invalid usage,
3 service unreachable.
"""

from __future__ import annotations

import json
import os
import uuid
from argparse import ArgumentTypeError
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from io import StringIO
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from eventservice.api.formats import parse_duration
from eventservice.client import ApiError, Client, Json, Unreachable, Unsendable
from eventservice.kernel.text import escape_invisible, escape_invisible_in_json
from eventservice.management.profile import KEY, TENANT, URL, read_profile
from eventservice.operators.error_kinds import get_error_name

if TYPE_CHECKING:
    from eventservice.api.schema.base import M

# The arguments of a command by their names. `add_arguments` decides the types of the values.
Options = Mapping[str, Any]

UNAUTHORIZED = 401
EXIT_REFUSED, EXIT_USAGE, EXIT_UNREACHABLE = 1, 2, 3
UNFINISHED = ("Scheduled", "Running")
# The argument of client commands that stands for the newest call.
LAST = "last"
STATUS_COLORS = {
    "Scheduled": "cyan",
    "Running": "yellow",
    "Succeeded": "green",
    "Failed": "red",
    "Canceled": "magenta",
}
# Longer durations would lead to timestamps that no database supports.
MAX_DURATION = timedelta(days=36_500)
# The width of a line where the output is not a terminal: a program that reads it needs all of it.
UNLIMITED_WIDTH = 1_000_000
# The minimum width of a column that is cut because the terminal is too narrow. What is left must still tell rows apart.
MIN_CUT_WIDTH = 16
COLUMN_GAP = 2
# How far the further lines of a row are indented.
ROW_INDENT = 2


class ApiCommand(BaseCommand):
    """A command that uses the REST API like any client: with an API key, for one tenant."""

    requires_system_checks = []
    # The arguments by which users know the members of requests. Keys are JSON pointers, also to what contains the member.
    arguments: Mapping[str, str] = {}

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--url", help=f"base URL of the service (default: {URL}, the profile, or this machine at PORT)"
        )
        parser.add_argument("--tenant", help=f"tenant name or id (default: {TENANT}, or the profile)")
        parser.add_argument("--key", help=f"API key (default: {KEY}, or the profile)")
        parser.add_argument("--json", action="store_true", help="print the response of the API as JSON")

    def handle(self, *args: object, **options: Any) -> None:
        self.terminal = Terminal(self, as_json=options["json"])
        access = find_access(options)
        with Client(access.url, access.tenant, access.key) as client:
            try:
                if not is_id(access.tenant):
                    client.select_tenant(access.tenant)
                self.run(client, options)
            except ApiError as error:
                hint = f"\nThe key is from {access.key_source}." if error.status == UNAUTHORIZED else ""
                raise CommandError(
                    escape_invisible(self.describe(error)) + hint, returncode=EXIT_REFUSED
                ) from None
            except Unsendable as error:
                raise CommandError(str(error), returncode=EXIT_USAGE) from None
            except Unreachable as error:
                hint = "Check that the service is running, and that EVENTSERVICE_URL or --url is its address."
                raise CommandError(f"{error}\n{hint}", returncode=EXIT_UNREACHABLE) from None
            except KeyboardInterrupt:
                return

    def run(self, client: Client, options: Options) -> None:
        raise NotImplementedError

    def exit_unless_succeeded(self, call: Json, waited: timedelta) -> None:
        """Exit with 1 unless the awaited call succeeded. Say so on standard error if it has not finished."""
        if call["status"] in UNFINISHED:
            self.stderr.write(
                f"Still {call['status']} after {waited.total_seconds():g} s; follow it with"
                f" `manage.py call {call['serviceCallId']} --watch`."
            )
        if call["status"] != "Succeeded":
            raise SystemExit(EXIT_REFUSED)

    def describe(self, error: ApiError) -> str:
        """Return the refusal with the arguments of the command instead of the members of the request."""
        if not error.errors:
            return str(error)
        lines = [
            f"{name_argument(fault.get('pointer', ''), self.arguments)} {fault.get('detail', '')}"
            for fault in error.errors
        ]
        if error.existing_call_id:
            lines.append(f"The call of the first request: {error.existing_call_id}")
        return "\n  ".join([f"Refused ({error.status} {error.code}):", *lines])


def format_outcome(outcome: Json | None) -> str | None:
    """Return the result of the last attempt of a call on one line: the response, or the error."""
    if not outcome:
        return None
    response, error = outcome.get("responseMeta") or {}, outcome.get("errorMeta") or {}
    latency = response.get("latencyMs", error.get("latencyMs"))
    kind, status = error.get("kind"), response.get("status")
    parts = [get_error_name(kind, status) if kind else str(status)]
    if latency is not None:
        parts.append(f"after {latency:.1f} ms")
    text = error.get("message") or response.get("bodySnippet")
    return " ".join(parts) + (f": {text}" if text else "")


class EachCallCommand(ApiCommand):
    """A command that acts on each of the given calls and prints each result immediately, so that none is lost."""

    # What LAST stands for. `get_last` returns it.
    last_call = "the newest call"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_id_argument(parser, nargs="+", last_call=self.last_call)

    def get_last(self, client: Client) -> Json:
        """Return the call that LAST stands for. Raise CommandError if there is none."""
        return get_newest_call(client)

    def run(self, client: Client, options: Options) -> None:
        calls, any_refused = [], False
        # Resolved before the first one is replayed, because its replay is newer.
        service_call_ids = [
            str(self.get_last(client)["serviceCallId"]) if text == LAST else text for text in options["id"]
        ]
        try:
            for service_call_id in service_call_ids:
                try:
                    call, result = self.run_for_call(client, service_call_id, options)
                except ApiError as error:
                    self.stderr.write(escape_invisible(f"{service_call_id}: {error}"))
                    any_refused = True
                    continue
                calls.append(call)
                if not self.terminal.as_json:
                    self.terminal.line(service_call_id, *result)
        finally:
            if self.terminal.as_json:
                self.terminal.json(calls)
        if any_refused:
            raise SystemExit(EXIT_REFUSED)

    def run_for_call(
        self, client: Client, service_call_id: str, options: Options
    ) -> tuple[Json, Sequence[object]]:
        """Return the resulting call, and the values to print after the given id."""
        raise NotImplementedError


def add_id_argument(
    parser: CommandParser, *, nargs: str | None = None, last_call: str = "the newest call"
) -> None:
    parser.add_argument("id", nargs=nargs, type=_parse_call_id, help=f"call id, or {LAST!r} for {last_call}")


def resolve_call_id(client: Client, text: str) -> str:
    """Return the id that the argument stands for. Raise CommandError if it is that of the newest call and there is none."""
    return str(get_newest_call(client)["serviceCallId"]) if text == LAST else text


def get_newest_call(client: Client) -> Json:
    """Return the newest call. Raise CommandError if there is none."""
    for call in client.list(limit=1, max_items=1):
        return call
    raise CommandError("There are no calls yet.", returncode=EXIT_REFUSED)


def _parse_call_id(text: str) -> str:
    return text if text == LAST else parse_id_argument(text, "a call id. `manage.py calls` lists them")


def parse_id_argument(text: str, expected: str) -> str:
    try:
        return str(uuid.UUID(text))
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not {expected}") from None


def parse_duration_argument(
    text: str, minimum: timedelta = timedelta(), maximum: timedelta = MAX_DURATION
) -> timedelta:
    """Parse a duration in the notation of the API and the console."""
    seconds = parse_duration(text)
    if seconds is None:
        raise ArgumentTypeError(f"{text!r} is not a duration such as 90s, 1h30m or 30d")
    if seconds > maximum.total_seconds():
        raise ArgumentTypeError(f"{text!r} is longer than {maximum.days}d")
    if seconds < minimum.total_seconds():
        raise ArgumentTypeError(f"{text!r} is shorter than {minimum.total_seconds():g}s")
    return timedelta(seconds=seconds)


def parse_time_argument(text: str) -> datetime | timedelta:
    """Parse a timestamp (2026-03-01T12:00:00Z) or the time since then (2h)."""
    if parse_duration(text) is not None:
        return parse_duration_argument(text)
    try:
        instant = datetime.fromisoformat(text)
        return instant.astimezone(UTC) if instant.tzinfo else instant.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise ArgumentTypeError(
            f"{text!r} is neither an ISO 8601 timestamp nor a duration such as 2h"
        ) from None


# For durations that must not be zero, such as the lifetime of a key or a polling interval.
parse_positive_duration = partial(parse_duration_argument, minimum=timedelta(seconds=0.1))


# A shorter age is likely a typing error, such as 30m for 30 months.
MIN_UNCONFIRMED_AGE = timedelta(hours=1)


def add_age_arguments(parser: CommandParser) -> None:
    """Add the options of a command that deletes what is older than an age."""
    parser.add_argument(
        "--older-than",
        type=parse_duration_argument,
        required=True,
        metavar="AGE",
        help="minimum age, such as 30d or 12h; less than 1h requires --yes",
    )
    parser.add_argument("--yes", action="store_true", help="also delete what is younger than 1h")


def require_confirmed_age(older_than: timedelta, confirmed: bool) -> None:
    """Raise CommandError for an age at which nearly everything would be deleted, unless the operator confirms it."""
    if older_than < MIN_UNCONFIRMED_AGE and not confirmed:
        raise CommandError(
            "--older-than is less than 1h: nearly everything that has ended would be deleted. A month is 30d; m stands for"
            " minutes. Add --yes if that is what you want."
        )


def name_argument(pointer: str, arguments: Mapping[str, str]) -> str:
    """Return the argument that became this member of a request. Without one, return the member's own name."""
    path = pointer
    while path:
        if path in arguments:
            return arguments[path]
        path = path.rpartition("/")[0]
    if pointer.startswith("/query/"):
        return f"--{pointer.removeprefix('/query/')}"
    return pointer.strip("/")


def ignore_case(values: Iterable[str]) -> Callable[[str], str]:
    """Return the type of an argument with these choices, in upper or lower case."""
    by_lower_case = {value.lower(): value for value in values}
    return lambda text: by_lower_case.get(text.lower(), text)


def parse_document(model: type[M], document: object, arguments: Mapping[str, str] | None = None) -> M:
    """Return arguments of the command as a document of the API; raise CommandError if they break its rules.

    `arguments` are the names of the arguments by JSON pointers. By default these are the names of the members.
    """
    from eventservice.api.schema.base import validate  # slow to import, and few commands need it

    parsed, errors = validate(model, document)
    if parsed is None:
        lines = [f"{name_argument(error.pointer, arguments or {})} {error.detail}" for error in errors]
        raise CommandError("\n".join(lines), returncode=EXIT_REFUSED)
    return parsed


class Access(NamedTuple):
    """The service that a command talks to, and its credentials. `tenant` is a name or an id."""

    url: str
    tenant: str
    key: str
    key_source: str


def find_access(options: Options) -> Access:
    """Return what the options say, or else the environment, or else the profile. Raise CommandError if that is not enough.

    The key of the profile is sent to the URL of the profile only.
    """

    def choose(option: str, variable: str) -> str:
        return options[option] or os.environ.get(variable) or profile.get(variable, "")

    profile = read_profile()
    url = choose("url", URL) or f"http://127.0.0.1:{settings.PORT}"
    if urlsplit(url).scheme not in ("http", "https"):
        raise CommandError(
            f"--url ({URL}): {url!r} is not a URL such as http://host:port", returncode=EXIT_USAGE
        )
    if url.rstrip("/") != profile.get(URL, "").rstrip("/"):
        profile = {}
    source = "--key" if options["key"] else KEY if os.environ.get(KEY) else "the profile"
    access = Access(url, choose("tenant", TENANT), choose("key", KEY), source)
    for name in ("tenant", "key"):
        if not getattr(access, name):
            raise CommandError(
                f"Use --{name}, set EVENTSERVICE_{name.upper()}, or start the service with `make run`, which writes a profile"
                " with both.",
                returncode=EXIT_USAGE,
            )
    return access


def is_id(text: str) -> bool:
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True


class Terminal:
    def __init__(self, command: BaseCommand, *, as_json: bool) -> None:
        self._write: Callable[..., object] = command.stdout.write
        self.as_json = as_json
        # The output of rich goes through the command's stdout, so that it can be piped and captured.
        self._buffer = StringIO()
        on_terminal = command.stdout.isatty()
        self._unlimited = Console(
            file=self._buffer, highlight=False, width=UNLIMITED_WIDTH, force_terminal=on_terminal
        )
        self.console = (
            Console(file=self._buffer, highlight=False, force_terminal=True)
            if on_terminal
            else self._unlimited
        )

    def json(self, value: object) -> None:
        self._write(escape_invisible_in_json(json.dumps(value, indent=2, ensure_ascii=False)))

    def line(self, *values: object) -> None:
        self.draw(Text("  ").join(_to_text(value) for value in values), self._unlimited)

    def table(
        self,
        columns: Sequence[str],
        rows: Iterable[Sequence[object]],
        *,
        empty: str,
        cut: Collection[str] = (),
    ) -> None:
        """Print a table. Only the columns in `cut` are shortened to fit; ids and times stay complete, to be copied.

        A row that is too wide even so takes several lines, and so does the header.
        """
        cells = [[_to_text(value) for value in row] for row in rows]
        if not cells:
            self._write(empty)
            return
        content_widths = {
            column: max(cell_len(column), *(row[at].cell_len for row in cells))
            for at, column in enumerate(columns)
        }
        lines = _wrap_columns(content_widths, cut, self.console.width)
        header = [Text(column, style="bold") for column in columns]
        texts = [_build_row(dict(zip(columns, row, strict=True)), lines) for row in [header, *cells]]
        self.draw(Text("\n").join(texts), self._unlimited)

    def pairs(self, pairs: Mapping[str, object]) -> None:
        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in pairs.items():
            if value not in (None, [], {}):
                table.add_row(name, _to_text(value))
        self.draw(table)

    def blank(self) -> None:
        self._write("")

    def clear(self) -> None:
        self.console.clear()
        self._write(self._take_buffer(), ending="")

    def draw(self, content: RenderableType, console: Console | None = None) -> None:
        (console or self.console).print(content)
        self._write("\n".join(line.rstrip() for line in self._take_buffer().splitlines()))

    def _take_buffer(self) -> str:
        text = self._buffer.getvalue()
        self._buffer.seek(0)
        self._buffer.truncate()
        return text


def _wrap_columns(content_widths: dict[str, int], cut: Collection[str], width: int) -> list[dict[str, int]]:
    """Return the columns on each line of a row, with their widths."""
    lines: list[dict[str, int]] = [{}]
    for name, content_width in content_widths.items():
        minimum = min(content_width, MIN_CUT_WIDTH) if name in cut else content_width
        indent = ROW_INDENT if len(lines) > 1 else 0
        taken = indent + sum(lines[-1].values()) + COLUMN_GAP * len(lines[-1])
        if lines[-1] and taken + minimum > width:
            lines.append({})
        lines[-1][name] = minimum
    return [
        _fit_columns(
            {name: content_widths[name] for name in line},
            [name for name in cut if name in line],
            width - (ROW_INDENT if at else 0),
        )
        for at, line in enumerate(lines)
    ]


def _build_row(cells: Mapping[str, Text], lines: Sequence[dict[str, int]]) -> Text:
    """Return a row, which may have several lines. Further lines that would be empty are left out."""
    texts = []
    for at, widths in enumerate(lines):
        if at and not any(cells[name].plain for name in widths):
            continue
        parts = [Text(" " * (ROW_INDENT - COLUMN_GAP))] if at else []
        last = list(widths)[-1]
        for name, width in widths.items():
            part = cells[name].copy()
            part.truncate(width, overflow="ellipsis", pad=name != last)
            parts.append(part)
        texts.append(Text(" " * COLUMN_GAP).join(parts))
    return Text("\n").join(texts)


def _fit_columns(content_widths: dict[str, int], cut: Collection[str], width: int) -> dict[str, int]:
    """Return the width of each column. The columns in `cut` share what the others leave, narrow ones first."""
    widths = dict(content_widths)
    fixed = sum(width for name, width in content_widths.items() if name not in cut)
    left = width - COLUMN_GAP * (len(content_widths) - 1) - fixed
    flexible = sorted(cut, key=lambda name: content_widths[name])
    for at, name in enumerate(flexible):
        widths[name] = min(content_widths[name], max(MIN_CUT_WIDTH, left // (len(flexible) - at)))
        left -= widths[name]
    return widths


def _to_text(value: object) -> Text:
    """Convert a value to text that is interpreted neither as markup nor by the terminal: a call may be named [/b]."""
    if value is None:
        return Text()
    if isinstance(value, list | tuple):
        return Text(escape_invisible(", ".join(str(item) for item in value)))
    if isinstance(value, dict):
        return Text(escape_invisible_in_json(json.dumps(value, ensure_ascii=False)))
    return Text(escape_invisible(str(value)), style=STATUS_COLORS.get(str(value), ""))

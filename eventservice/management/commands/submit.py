from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from django.core.management.base import CommandError, CommandParser

from eventservice.client import Client
from eventservice.management.terminal import REFUSED, ApiCommand, some_time


class Command(ApiCommand):
    help = 'Submit a service call: submit greet POST https://example.com/hello --body \'{"name": "Ada"}\' --in 90s'

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("name")
        parser.add_argument("method", type=str.upper)
        parser.add_argument("target", help="the URL to call")
        parser.add_argument("-H", "--header", action="append", default=[], metavar="'NAME: VALUE'")
        parser.add_argument("--body", help="JSON or a text; - reads it from standard input")
        when = parser.add_mutually_exclusive_group()
        when.add_argument("--in", dest="delay", metavar="90s", help="how long from now")
        when.add_argument("--at", metavar="2026-03-01T12:00:00Z", help="when")
        parser.add_argument("--tag", action="append", default=[])
        parser.add_argument("--attempts", type=int, help="the most attempts")
        parser.add_argument("--timeout", type=some_time, metavar="30s", help="for each attempt")
        parser.add_argument("--idempotency-key")
        parser.add_argument(
            "--wait", type=some_time, metavar="10s", help="until it has ended, at most so long"
        )

    def act(self, client: Client, options: Mapping[str, Any]) -> None:
        call = client.submit(
            options["name"],
            options["method"],
            options["target"],
            headers=_headers(options["header"]),
            body=_body(options["body"]),
            idempotency_key=options["idempotency_key"],
            **_choices(options),
        )
        if options["wait"]:
            call = client.wait(call["serviceCallId"], options["wait"].total_seconds())
        if self.terminal.as_json:
            self.terminal.json(call)
        else:
            shown = ("serviceCallId", "name", "status", "dueAt", "tags", "outcome")
            self.terminal.pairs({name: call[name] for name in shown})
        if options["wait"] and call["status"] != "Succeeded":
            raise SystemExit(REFUSED)


def _choices(options: Mapping[str, Any]) -> dict[str, Any]:
    attempts, timeout = options["attempts"], options["timeout"]
    given = {
        "delay": options["delay"],
        "dueAt": options["at"],
        "tags": options["tag"] or None,
        "timeoutSeconds": timeout and timeout.total_seconds(),
        "retryPolicy": None if attempts is None else {"maxAttempts": attempts},
    }
    return {name: value for name, value in given.items() if value is not None}


def _headers(lines: list[str]) -> dict[str, str]:
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise CommandError(f"{line!r} is no header: expected 'Name: value'.", returncode=2)
        headers[name.strip()] = value.strip()
    return headers


def _body(text: str | None) -> Any:
    if text == "-":
        text = sys.stdin.read()
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError:
        return text

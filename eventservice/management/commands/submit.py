from __future__ import annotations

import json
import sys

from django.core.management.base import CommandError, CommandParser

from eventservice.client import Client
from eventservice.management.terminal import (
    ApiCommand,
    Options,
    format_outcome,
    parse_positive_duration,
)


class Command(ApiCommand):
    arguments = {
        "/name": "name",
        "/requestSpec/method": "method",
        "/requestSpec/url": "target",
        "/requestSpec/headers": "--header",
        "/requestSpec/body": "--body",
        "/delay": "--in",
        "/dueAt": "--at",
        "/tags": "--tag",
        "/retryPolicy/maxAttempts": "--attempts",
        "/retryPolicy/initialInterval": "--initial-delay",
        "/retryPolicy/maxInterval": "--max-delay",
        "/timeoutSeconds": "--timeout",
        "/headers/Idempotency-Key": "--idempotency-key",
        "/idempotencyKey": "--idempotency-key",
    }
    help = 'Submit a service call: submit greet POST https://example.com/hello --body \'{"name": "Ada"}\' --in 90s'

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("name")
        parser.add_argument("method", type=str.upper)
        parser.add_argument("target", help="the URL to call")
        parser.add_argument("-H", "--header", action="append", default=[], metavar="'NAME: VALUE'")
        parser.add_argument("--body", help="JSON or plain text; - reads from standard input")
        when = parser.add_mutually_exclusive_group()
        when.add_argument("--in", dest="delay", metavar="90s", help="delay from now")
        when.add_argument("--at", metavar="2026-03-01T12:00:00Z", help="due time")
        parser.add_argument("--tag", action="append", default=[])
        parser.add_argument(
            "--attempts",
            type=int,
            help="maximum number of attempts (default: 1, or 100 with --initial-delay or --max-delay)",
        )
        parser.add_argument(
            "--initial-delay",
            metavar="30s",
            help="attempts are repeated after a random pause of up to this long, then up to twice, four times … as long"
            " (default: 30s)",
        )
        parser.add_argument(
            "--max-delay", metavar="1h", help="longest pause between two attempts (default: 1h)"
        )
        parser.add_argument(
            "--timeout", type=parse_positive_duration, metavar="30s", help="timeout of each attempt"
        )
        parser.add_argument(
            "--idempotency-key", help="a repeated submission with the same key returns the call of the first"
        )
        parser.add_argument(
            "--wait",
            type=parse_positive_duration,
            metavar="10s",
            help="wait until the call has finished, for at most this long",
        )

    def run(self, client: Client, options: Options) -> None:
        headers, body = _parse_headers(options["header"]), _parse_body(options["body"])
        if isinstance(body, str) and body.lstrip().startswith(("{", "[")):
            has_type = any(name.lower() == "content-type" for name in headers)
            self.stderr.write(
                f"The body is not JSON and is sent as text{'' if has_type else ', without Content-Type'}."
            )
        call = client.submit(
            options["name"],
            options["method"],
            options["target"],
            headers=headers,
            body=body,
            idempotency_key=options["idempotency_key"],
            **_build_options(options),
        )
        if client.is_repeat:
            self.stderr.write("This idempotency key was used before: this is its call.")
        if options["wait"]:
            call = client.wait(call["serviceCallId"], options["wait"].total_seconds())
        if self.terminal.as_json:
            self.terminal.json(call)
        else:
            fields = ("serviceCallId", "name", "status", "dueAt", "tags")
            self.terminal.pairs(
                {**{name: call[name] for name in fields}, "outcome": format_outcome(call["outcome"])}
            )
        if options["wait"]:
            self.exit_unless_succeeded(call, options["wait"])


def _build_options(options: Options) -> dict[str, object]:
    timeout = options["timeout"]
    retries = {
        "maxAttempts": options["attempts"],
        "initialInterval": options["initial_delay"],
        "maxInterval": options["max_delay"],
    }
    given = {
        "delay": options["delay"],
        "dueAt": options["at"],
        "tags": options["tag"] or None,
        "timeoutSeconds": timeout and timeout.total_seconds(),
        "retryPolicy": {name: value for name, value in retries.items() if value is not None} or None,
    }
    return {name: value for name, value in given.items() if value is not None}


def _parse_headers(lines: list[str]) -> dict[str, str]:
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise CommandError(f"{line!r} is not a header. Use the form 'Name: value'.", returncode=2)
        headers[name.strip()] = value.strip()
    return headers


def _parse_body(text: str | None) -> object:
    if text == "-":
        text = sys.stdin.read()
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError:
        return text

from __future__ import annotations

from datetime import timedelta

from django.core.management.base import CommandParser

from eventservice.client import Client, Json
from eventservice.management.terminal import (
    ApiCommand,
    Options,
    add_id_argument,
    format_outcome,
    parse_positive_duration,
    resolve_call_id,
)
from eventservice.operators.error_kinds import get_error_name

DISPLAYED_FIELDS = (
    "serviceCallId", "name", "status", "submittedAt", "dueAt", "startedAt", "finishedAt", "attempts", "tags",
    "correlationId", "replayOf", "requestSpec", "retryPolicy", "outcome",
)  # fmt: skip


class Command(ApiCommand):
    help = "Show one service call with its attempts and its timeline."

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_id_argument(parser)
        parser.add_argument(
            "--watch",
            type=parse_positive_duration,
            nargs="?",
            const=timedelta(minutes=1),
            metavar="60s",
            help="wait until the call has finished, for at most this long (default: 60s)",
        )

    def run(self, client: Client, options: Options) -> None:
        wait, call_id = options["watch"], resolve_call_id(client, options["id"])
        call = client.wait(call_id, wait.total_seconds()) if wait else client.get(call_id)
        events, executions = list(client.events(call_id)), list(client.executions(call_id))
        if self.terminal.as_json:
            self.terminal.json({**call, "executions": executions, "events": events})
        else:
            self._show(call, executions, events)
        if wait:
            self.exit_unless_succeeded(call, wait)

    def _show(self, call: Json, executions: list[Json], events: list[Json]) -> None:
        fields = {name: call[name] for name in DISPLAYED_FIELDS}
        self.terminal.pairs({**fields, "outcome": format_outcome(call["outcome"])})
        attempts = [
            (a["attempt"], a["startedAt"], a["finishedAt"], _format_result(a), _round_latency(a["latencyMs"]))
            for a in executions
        ]
        self.terminal.blank()
        self.terminal.table(("#", "started", "finished", "result", "ms"), attempts, empty="No attempts yet.")
        self.terminal.blank()
        timeline = [(event["seq"], event["occurredAt"], event["type"]) for event in events]
        self.terminal.table(("seq", "at", "event"), timeline, empty="The events were deleted by retention.")


def _format_result(attempt: Json) -> str:
    if attempt["error"]:
        return get_error_name(attempt["error"]["kind"])
    return str(attempt["response"]["status"]) if attempt["response"] else "in progress"


def _round_latency(latency: float | None) -> float | None:
    return None if latency is None else round(latency, 1)

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from django.core.management.base import CommandParser

from eventservice.client import Client
from eventservice.management.terminal import REFUSED, ApiCommand, call_id, some_time

SHOWN = (
    "serviceCallId", "name", "status", "submittedAt", "dueAt", "startedAt", "finishedAt", "attempts", "tags",
    "correlationId", "replayOf", "requestSpec", "retryPolicy", "outcome",
)  # fmt: skip


class Command(ApiCommand):
    help = "Show one service call with its attempts and its timeline."

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("id", type=call_id)
        parser.add_argument(
            "--watch",
            type=some_time,
            nargs="?",
            const=timedelta(minutes=1),
            metavar="60s",
            help="until it has ended, at most so long",
        )

    def act(self, client: Client, options: Mapping[str, Any]) -> None:
        wait = options["watch"]
        call = client.wait(options["id"], wait.total_seconds()) if wait else client.get(options["id"])
        events, executions = list(client.events(options["id"])), list(client.executions(options["id"]))
        if self.terminal.as_json:
            self.terminal.json({**call, "executions": executions, "events": events})
        else:
            self._show(call, executions, events)
        if wait and call["status"] != "Succeeded":
            raise SystemExit(REFUSED)

    def _show(
        self, call: dict[str, Any], executions: list[dict[str, Any]], events: list[dict[str, Any]]
    ) -> None:
        self.terminal.pairs({name: call[name] for name in SHOWN})
        attempts = [
            (a["attempt"], a["startedAt"], a["finishedAt"], _result(a), _rounded(a["latencyMs"]))
            for a in executions
        ]
        self.terminal.blank()
        self.terminal.table(
            ("attempt", "started", "finished", "result", "ms"), attempts, empty="No attempt yet."
        )
        self.terminal.blank()
        timeline = [(event["seq"], event["occurredAt"], event["type"]) for event in events]
        self.terminal.table(("seq", "at", "event"), timeline, empty="Its events have been pruned.")


def _result(attempt: dict[str, Any]) -> str:
    if attempt["error"]:
        return str(attempt["error"]["kind"])
    return str(attempt["response"]["status"]) if attempt["response"] else "under way"


def _rounded(latency: float | None) -> float | None:
    return None if latency is None else round(latency, 1)

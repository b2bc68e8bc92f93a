from __future__ import annotations

from collections.abc import Iterator

from django.core.management.base import CommandParser

from eventservice.client import Client, Json
from eventservice.management.terminal import LAST, ApiCommand, Options, get_newest_call, parse_id_argument
from eventservice.operators.error_kinds import get_error_name

MAX_CALLS_SHOWN = 100
COLUMNS = ("at", "call", "name", "what", "detail")


class Command(ApiCommand):
    help = "Show the trace of a correlation id: its calls, timers, attempts and events, on one time line."

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "id", type=_parse_trace_id, help=f"correlation id, or {LAST!r} for that of the newest call"
        )

    def run(self, client: Client, options: Options) -> None:
        trace = client.trace(_resolve_correlation_id(client, options["id"]), max_items=MAX_CALLS_SHOWN)
        if self.terminal.as_json:
            self.terminal.json(trace)
            return
        counts = ", ".join(f"{count} {status}" for status, count in trace["byStatus"].items() if count)
        self.terminal.pairs(
            {
                "correlationId": trace["correlationId"],
                "calls": f"{trace['callCount']}: {counts}",
                "firstSubmittedAt": trace["firstSubmittedAt"],
                "lastFinishedAt": trace["lastFinishedAt"],
            }
        )
        self.terminal.blank()
        steps = sorted(
            (step for call in trace["items"] for step in _list_steps(call)), key=lambda step: step[0]
        )
        self.terminal.table(COLUMNS, steps, empty="The trace has no calls.", cut=("name", "detail"))
        if (left := trace["callCount"] - len(trace["items"])) > 0:
            self.stderr.write(f"{left} more calls are not shown: the API and the console list all of them.")


def _parse_trace_id(text: str) -> str:
    return text if text == LAST else parse_id_argument(text, "a correlation id. `manage.py call` shows it")


def _resolve_correlation_id(client: Client, text: str) -> str:
    return str(get_newest_call(client)["correlationId"]) if text == LAST else text


def _list_steps(call: Json) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield what happened to a call, and what will: the time, the call, and what it is."""
    for at, what, detail in _list_moments(call):
        yield at, call["serviceCallId"], call["name"], what, detail


def _list_moments(call: Json) -> Iterator[tuple[str, str, str]]:
    timer = call["timer"]
    if timer is not None:
        yield timer["registeredAt"], "timer set", f"due {timer['dueAt']}"
        if timer["reachedAt"]:
            yield timer["reachedAt"], "timer reached", f"due {timer['dueAt']}"
        else:
            yield timer["dueAt"], "timer due", "planned"
    for attempt in call["executions"]:
        number = attempt["attempt"]
        yield attempt["startedAt"], f"attempt {number} started", ""
        if attempt["finishedAt"]:
            result = get_error_name(attempt["errorKind"]) or attempt["status"]
            latency = "" if attempt["latencyMs"] is None else f" after {attempt['latencyMs']} ms"
            yield attempt["finishedAt"], f"attempt {number} ended", f"{result}{latency}"
    for event in call["events"]:
        yield event["occurredAt"], f"event {event['seq']}", f"{event['type']} ({event['state']})"
    for replay in call["replays"]:
        yield replay["submittedAt"], "replayed", f"as {replay['serviceCallId']} ({replay['status']})"

"""The export of a list of calls: CSV for spreadsheets, NDJSON for programs. Neither contains headers or bodies."""

from __future__ import annotations

import csv
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

from django.http import HttpRequest, StreamingHttpResponse
from django.http.response import HttpResponseBase

from eventservice.api.long_requests import limit_expensive_reads
from eventservice.api.schema.calls import ListedCallSchema
from eventservice.console.base.views import ConsoleView
from eventservice.console.calls.list_query import ListQuery, parse_list_query
from eventservice.db.bulk import to_json
from eventservice.db.now import db_now
from eventservice.operators.error_kinds import get_error_name
from orchestration.queries.call_lists import list_calls

MAX_EXPORTED_CALLS = 50_000
BATCH_SIZE = 500
# An export occupies a web worker for at most this long.
MAX_SECONDS = 20.0
# Where a spreadsheet would read a formula: at the beginning of a cell, also after spaces and in full-width characters, and
# after a semicolon, which separates cells where the comma is the decimal point.
_FORMULA = re.compile(r"(^|;)(?=[\s\"\u200b-\u200f\u2060\ufeff]*[=+\-@＝＋－＠﹦﹢﹣﹫]|[\t\r\n])")

ExportedCall = Mapping[str, Any]


def _name_error(call: ExportedCall) -> str | None:
    outcome = call["outcome"] or {}
    kind = outcome.get("errorKind")
    return get_error_name(kind, outcome.get("status")) if kind else None


COLUMNS: dict[str, Callable[[ExportedCall], Any]] = {
    "id": lambda call: call["serviceCallId"],
    "tenant": lambda call: call["tenant"],
    "tenant_id": lambda call: call["tenantId"],
    "name": lambda call: call["name"],
    "status": lambda call: call["status"],
    "method": lambda call: call["request"]["method"],
    "url": lambda call: call["request"]["url"],
    "host": lambda call: call["request"]["host"],
    "namespace": lambda call: call["namespace"],
    "timer_id": lambda call: call["timerId"],
    "tags": lambda call: " ".join(call["tags"]),
    "submitted_at": lambda call: call["submittedAt"],
    "due_at": lambda call: call["dueAt"],
    "started_at": lambda call: call["startedAt"],
    "finished_at": lambda call: call["finishedAt"],
    "attempts": lambda call: call["attempts"],
    "http_status": lambda call: (call["outcome"] or {}).get("status"),
    "error": lambda call: (call["outcome"] or {}).get("errorKind"),
    "latency_ms": lambda call: (call["outcome"] or {}).get("latencyMs"),
    "correlation_id": lambda call: call["correlationId"],
    "replay_of": lambda call: call["replayOf"],
    "error_name": _name_error,
}


class ExportCalls(ConsoleView):
    nav = "calls"

    def get(self, request: HttpRequest, kind: str) -> HttpResponseBase:
        query = parse_list_query(request.GET)
        query.raise_if_invalid()
        write, media_type = FORMATS[kind]
        with ExitStack() as reading:
            reading.enter_context(limit_expensive_reads())
            response = StreamingHttpResponse(write(_iterate_calls(query)), content_type=media_type)
            # Until it has been sent, or the client is gone.
            response._resource_closers.append(reading.pop_all().close)  # type: ignore[attr-defined]
        name = f"calls-{db_now():%Y%m%d-%H%M%S}.{kind}"
        response.headers["Content-Disposition"] = f'attachment; filename="{name}"'
        response.headers["Cache-Control"] = "no-store"
        return response


class ExportTruncated(Exception):
    """There are more calls than were exported."""


def _iterate_calls(query: ListQuery) -> Iterator[ExportedCall]:
    """Yield the calls from the first page on. Raise ExportTruncated if a limit is reached before the last call."""
    filters, order, position, written = query.filters, query.order, None, 0
    deadline = time.monotonic() + MAX_SECONDS
    while True:
        page = list_calls(filters, order, BATCH_SIZE, after=position)
        for call in page.calls:
            yield {
                **ListedCallSchema.from_call(call).to_document(),
                "tenant": query.listed.get(call.tenant_id),
            }
        written += len(page.calls)
        position = page.following
        if position is None:
            return
        if written >= MAX_EXPORTED_CALLS or time.monotonic() > deadline:
            raise ExportTruncated(
                f"Truncated after {written:,} calls. Narrow the filters to export the others."
            )


def write_csv(calls: Iterable[ExportedCall]) -> Iterator[str]:
    writer = csv.writer(_Echo())
    yield writer.writerow(COLUMNS)
    try:
        for call in calls:
            yield writer.writerow([_escape_formula(get_value(call)) for get_value in COLUMNS.values()])
    except ExportTruncated as truncated:
        yield writer.writerow([f"# {truncated}"])


class _Echo:
    """A file that returns what is written to it, so that csv.writer.writerow returns the line."""

    def write(self, text: str) -> str:
        return text


def _escape_formula(value: Any) -> Any:
    return _FORMULA.sub(r"\1'", value) if isinstance(value, str) else value


def write_ndjson(calls: Iterable[ExportedCall]) -> Iterator[str]:
    try:
        for call in calls:
            yield to_json(call) + "\n"
    except ExportTruncated as truncated:
        yield to_json({"cutShort": str(truncated)}) + "\n"


FORMATS: dict[str, tuple[Callable[[Iterable[ExportedCall]], Iterator[str]], str]] = {
    "csv": (write_csv, "text/csv; charset=utf-8"),
    "ndjson": (write_ndjson, "application/x-ndjson; charset=utf-8"),
}

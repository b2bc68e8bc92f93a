"""The list as a file: CSV for people's tables, NDJSON for programs. Neither has bodies or headers."""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from django.http import HttpRequest, StreamingHttpResponse
from django.http.response import HttpResponseBase

from eventservice.api.call_presentation import show_listed
from eventservice.console.base.views import ConsoleView
from eventservice.console.calls.list_query import Asked, read_asked
from eventservice.db.bulk import to_json
from eventservice.db.now import db_now
from orchestration.queries.call_lists import list_calls

MOST_EXPORTED = 50_000
PIECE = 500
# A worker of the web tier is held as long as this at most.
MOST_SECONDS = 20.0
# A cell that begins so is a formula to a spreadsheet.
FORMULA = ("=", "+", "-", "@", "\t", "\r")

Line = Mapping[str, Any]

COLUMNS: dict[str, Callable[[Line], Any]] = {
    "id": lambda line: line["serviceCallId"],
    "tenant": lambda line: line["tenant"],
    "tenant_id": lambda line: line["tenantId"],
    "name": lambda line: line["name"],
    "status": lambda line: line["status"],
    "method": lambda line: line["request"]["method"],
    "url": lambda line: line["request"]["url"],
    "host": lambda line: line["request"]["host"],
    "namespace": lambda line: line["namespace"],
    "timer_id": lambda line: line["timerId"],
    "tags": lambda line: " ".join(line["tags"]),
    "submitted_at": lambda line: line["submittedAt"],
    "due_at": lambda line: line["dueAt"],
    "started_at": lambda line: line["startedAt"],
    "finished_at": lambda line: line["finishedAt"],
    "attempts": lambda line: line["attempts"],
    "http_status": lambda line: (line["outcome"] or {}).get("status"),
    "error": lambda line: (line["outcome"] or {}).get("errorKind"),
    "latency_ms": lambda line: (line["outcome"] or {}).get("latencyMs"),
    "correlation_id": lambda line: line["correlationId"],
    "replay_of": lambda line: line["replayOf"],
}


class Export(ConsoleView):
    nav = "calls"

    def get(self, request: HttpRequest, kind: str) -> HttpResponseBase:
        asked = read_asked(request.GET).checked()
        write, media_type = KINDS[kind]
        response = StreamingHttpResponse(write(_lines(asked)), content_type=media_type)
        name = f"calls-{db_now():%Y%m%d-%H%M%S}.{kind}"
        response.headers["Content-Disposition"] = f'attachment; filename="{name}"'
        response.headers["Cache-Control"] = "no-store"
        return response


class CutShort(Exception):
    """There are more calls than were written."""


def _lines(asked: Asked) -> Iterator[Line]:
    """From the first page on; raises CutShort where it has to end before the list does."""
    wanted, order, position, written = asked.wanted, asked.order, None, 0
    deadline = time.monotonic() + MOST_SECONDS
    while True:
        page = list_calls(wanted, order, PIECE, after=position)
        for call in page.calls:
            yield {**show_listed(call), "tenant": asked.listed.get(call.tenant_id)}
        written += len(page.calls)
        position = page.following
        if position is None:
            return
        if written >= MOST_EXPORTED or time.monotonic() > deadline:
            raise CutShort(f"There are more calls than these {written:,}. Narrow the filters for the others.")


def write_csv(lines: Iterable[Line]) -> Iterator[str]:
    echo = csv.writer(_Echo())
    yield echo.writerow(COLUMNS)
    try:
        for line in lines:
            yield echo.writerow([_cell(of(line)) for of in COLUMNS.values()])
    except CutShort as cut:
        yield echo.writerow([f"# {cut}"])


class _Echo:
    """csv.writer gives back what its file's `write` does."""

    def write(self, text: str) -> str:
        return text


def _cell(value: Any) -> Any:
    if isinstance(value, str) and value.startswith(FORMULA):
        return f"'{value}"
    return value


def write_ndjson(lines: Iterable[Line]) -> Iterator[str]:
    try:
        for line in lines:
            yield to_json(line) + "\n"
    except CutShort as cut:
        yield to_json({"cutShort": str(cut)}) + "\n"


KINDS: dict[str, tuple[Callable[[Iterable[Line]], Iterator[str]], str]] = {
    "csv": (write_csv, "text/csv; charset=utf-8"),
    "ndjson": (write_ndjson, "application/x-ndjson; charset=utf-8"),
}

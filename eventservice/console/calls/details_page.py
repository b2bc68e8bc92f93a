"""The details of a call: its state, timeline, request, responses, attempts and events; downloads and the curl command."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from django.http import HttpRequest, HttpResponse

from eventservice.console.base.views import ConsoleView
from eventservice.console.calls.curl import format_curl
from eventservice.console.calls.presenters.call_state import build_call_context
from eventservice.console.calls.presenters.http_exchange import (
    build_attempt_rows,
    build_download_url,
    build_request_context,
    build_response_context,
    catch_up,
    get_chosen_attempt,
    get_hostnames,
    get_request_body,
)
from eventservice.console.calls.presenters.timeline import (
    build_timeline,
    has_pruned_events,
)
from eventservice.db.bulk import to_json
from eventservice.db.now import db_now
from eventservice.kernel.errors import NotFound
from eventservice.operators.audit_log import list_actions_on
from execution.attempt_log import list_attempts_without_bodies
from execution.models import HttpExecution
from execution.redaction import mask_query, mask_stored_headers
from orchestration.queries.calls import CallDetails, get_call, list_replays
from outbox.queries import list_aggregate_events

TABS = {"response": "Response", "request": "Request", "attempts": "Attempts", "events": "Events"}
MAX_TIMELINE_EVENTS = 500
EVENTS_PER_PAGE = 100
MAX_REPLAYS_SHOWN = 3
# Shells limit the length of a command line.
MAX_CURL_BODY_LENGTH = 100_000


class CallDetailsPage(ConsoleView):
    nav = "calls"
    template = "console/calls/details.html"

    def get(self, request: HttpRequest, tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> HttpResponse:
        call = get_call(tenant_id, service_call_id)
        attempts = list_attempts_without_bodies(tenant_id, service_call_id)
        events = list_aggregate_events(tenant_id, service_call_id, 0, MAX_TIMELINE_EVENTS)
        replays = list_replays(tenant_id, service_call_id, MAX_REPLAYS_SHOWN + 1)
        tab = self._build_tab_context(call, attempts)
        call = catch_up(call, [*attempts, tab.get("attempt")])
        context = {
            **build_call_context(call, db_now()),
            "tabs": TABS,
            "steps": build_timeline(call, attempts, events, get_hostnames()),
            "events_pruned": has_pruned_events(events),
            "replays": replays[:MAX_REPLAYS_SHOWN],
            "has_more_replays": len(replays) > MAX_REPLAYS_SHOWN,
            "actions": [
                action for action in list_actions_on(service_call_id) if action.tenant_id == tenant_id
            ],
            **tab,
        }
        return self.render(context)

    def _build_tab_context(self, call: CallDetails, attempts: Sequence[HttpExecution]) -> dict[str, object]:
        parameters = self.request.GET
        tab = parameters.get("tab", "")
        match tab if tab in TABS else "response" if attempts else "request":
            case "request":
                raw = parameters.get("view") == "text"
                return {"tab": "request", **build_request_context(call, raw=raw)}
            case "attempts":
                return {"tab": "attempts", "rows": build_attempt_rows(attempts, get_hostnames())}
            case "events":
                return {"tab": "events", **_build_events_context(call, parameters.get("after", ""))}
            case _:
                chosen = parameters.get("attempt")
                url = f"?tab=response&attempt={chosen}" if chosen else "?tab=response"
                return {"tab": "response", **build_response_context(call, parameters, url=url)}


def _build_events_context(call: CallDetails, after: str) -> dict[str, object]:
    """Return a page of events. `after` is the sequence number of the last event on the page before."""
    is_number = after.isascii() and after.isdecimal() and len(after) < 10
    start = int(after) if is_number else 0
    page = list_aggregate_events(call.tenant_id, call.service_call_id, start, EVENTS_PER_PAGE + 1)
    shown = page[:EVENTS_PER_PAGE]
    return {
        "events": [(event, to_json(event.event_payload)) for event in shown],
        "next_after": shown[-1].aggregate_seq if len(page) > EVENTS_PER_PAGE else None,
    }


class DownloadBody(ConsoleView):
    """The whole body of a request or response as a text file, which a browser does not interpret."""

    nav = "calls"

    def get(
        self, request: HttpRequest, tenant_id: uuid.UUID, service_call_id: uuid.UUID, which: str
    ) -> HttpResponse:
        call = get_call(tenant_id, service_call_id)
        if which == "request":
            text = get_request_body(call.request_spec)
        else:
            attempt = get_chosen_attempt(call, request.GET)
            text = attempt.response_body if attempt else None
        if text is None:
            raise NotFound("body")
        return HttpResponse(
            text.encode(errors="replace"),
            "text/plain; charset=utf-8",
            headers={
                "Content-Disposition": f'attachment; filename="{which}-{service_call_id}.txt"',
                "X-Content-Type-Options": "nosniff",
                "Cache-Control": "no-store",
            },
        )


class CurlCommand(ConsoleView):
    """The request as a curl command, without its secrets."""

    nav = "calls"
    template = "console/calls/curl.html"

    def get(self, request: HttpRequest, tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> HttpResponse:
        call = get_call(tenant_id, service_call_id)
        spec = call.request_spec
        body, headers = get_request_body(spec), mask_stored_headers(spec.get("headers") or {})
        stored_headers = spec.get("headers") or {}
        is_json = body is not None and not isinstance(spec.get("body"), str)
        if is_json and not any(name.lower() == "content-type" for name in headers):
            headers = {"Content-Type": "application/json", **headers}
        is_too_long = body is not None and len(body) > MAX_CURL_BODY_LENGTH
        body_file = f"request-{service_call_id}.txt" if is_too_long else ""
        context = {
            **build_call_context(call, db_now()),
            "command": format_curl(
                spec["method"], mask_query(spec["url"]), headers, body, body_file=body_file
            ),
            "secrets": sorted(name for name, value in stored_headers.items() if isinstance(value, dict)),
            "body_is_too_long": is_too_long,
            "download_url": build_download_url(call, "request"),
        }
        return self.render(context)

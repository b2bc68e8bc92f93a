"""The Details page: one call, what it asked for, what became of it, and what may be done with it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from django.http import HttpRequest, HttpResponse

from eventservice.api.call_presentation import show_request
from eventservice.console.base.views import ConsoleView
from eventservice.console.calls.curl import format_curl
from eventservice.console.calls.presenters.call_state import about
from eventservice.console.calls.presenters.exchange import (
    answered,
    asked,
    body_href,
    hostnames,
    named_attempt,
    request_body,
    rows_of,
)
from eventservice.console.calls.presenters.timeline import (
    are_pruned,
    retries_of,
    timeline,
)
from eventservice.db.bulk import to_json
from eventservice.db.now import db_now
from eventservice.kernel.errors import NotFound
from eventservice.operators.audit_log import list_actions_on
from execution.attempt_log import list_attempts_without_bodies
from orchestration.queries.calls import CallDetails, get_call, list_replays
from outbox.queries import list_aggregate_events
from timers.schedule import find_timer

TABS = {"response": "Response", "request": "Request", "attempts": "Attempts", "events": "Events"}
MOST_EVENTS = 500
EVENTS_PAGE = 100
MOST_REPLAYS = 3
# Beyond it a command line is no use: shells have limits too.
MOST_IN_CURL = 100_000


class Call(ConsoleView):
    nav = "calls"
    template = "console/calls/details.html"

    def get(self, request: HttpRequest, tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> HttpResponse:
        call = get_call(tenant_id, service_call_id)
        attempts = list_attempts_without_bodies(tenant_id, service_call_id)
        events = list_aggregate_events(tenant_id, service_call_id, 0, MOST_EVENTS)
        replays = list_replays(tenant_id, service_call_id, MOST_REPLAYS + 1)
        hosts = hostnames()
        now = db_now()
        chosen = request.GET.get("tab", "")
        tab = chosen if chosen in TABS else "response" if attempts else "request"
        context = {
            **about(call, now),
            "tab": tab,
            "tabs": TABS,
            "timer": find_timer(tenant_id, service_call_id),
            "steps": timeline(call, attempts, events, hosts),
            "events_pruned": are_pruned(events),
            "retries": retries_of(call),
            "replays": replays[:MOST_REPLAYS],
            "more_replays": len(replays) > MOST_REPLAYS,
            "attempts": attempts,
            "actions": [a for a in list_actions_on(service_call_id) if a.tenant_id == tenant_id],
            **self._of_tab(tab, call, attempts, events, hosts),
        }
        return self.render(context)

    def _of_tab(
        self, tab: str, call: CallDetails, attempts: Any, events: Any, hosts: Mapping[uuid.UUID, str]
    ) -> dict[str, Any]:
        match tab:
            case "request":
                return asked(call, as_text=self.request.GET.get("view") == "text")
            case "attempts":
                return {"rows": rows_of(attempts, hosts)}
            case "events":
                return _events_page(self.request, call, events)
            case _:
                return answered(self.request, call, _answer_href(self.request))


def _answer_href(request: HttpRequest) -> str:
    named = request.GET.get("attempt")
    return f"?tab=response&attempt={named}" if named else "?tab=response"


def _events_page(request: HttpRequest, call: CallDetails, events: Any) -> dict[str, Any]:
    after = request.GET.get("after", "")
    start = int(after) if after.isascii() and after.isdecimal() and len(after) < 10 else 0
    page = list_aggregate_events(call.tenant_id, call.service_call_id, start, EVENTS_PAGE + 1)
    shown = page[:EVENTS_PAGE]
    return {
        "events": [(event, to_json(event.event_payload)) for event in shown],
        "events_after": shown[-1].aggregate_seq if len(page) > EVENTS_PAGE else None,
    }


class Body(ConsoleView):
    """A whole body, as text and as a file: whatever it holds, a browser will not carry it out."""

    nav = "calls"

    def get(
        self, request: HttpRequest, tenant_id: uuid.UUID, service_call_id: uuid.UUID, which: str
    ) -> HttpResponse:
        call = get_call(tenant_id, service_call_id)
        if which == "request":
            text = request_body(call.request_spec)
        else:
            attempt = named_attempt(request, call)
            text = attempt and attempt.response_body
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


class Curl(ConsoleView):
    """The request as a command line, without the secrets."""

    nav = "calls"
    template = "console/calls/curl.html"

    def get(self, request: HttpRequest, tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> HttpResponse:
        call = get_call(tenant_id, service_call_id)
        spec = call.request_spec
        body, headers = request_body(spec), show_request(spec)["headers"]
        given = spec.get("headers") or {}
        secrets = sorted(name for name, value in given.items() if isinstance(value, dict))
        is_json = body is not None and not isinstance(spec.get("body"), str)
        if is_json and not any(name.lower() == "content-type" for name in headers):
            headers = {"Content-Type": "application/json", **headers}
        too_large = body is not None and len(body) > MOST_IN_CURL
        body_file = f"request-{service_call_id}.txt" if too_large else ""
        command = format_curl(spec["method"], spec["url"], headers, body, body_file=body_file)
        return self.render(
            {
                **about(call, db_now()),
                "command": command,
                "secrets": secrets,
                "too_large": too_large,
                "download": body_href(call, "request"),
            }
        )

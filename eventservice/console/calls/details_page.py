"""The Details page: one call, what it asked for, what became of it, and what may be done with it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from eventservice.api.call_presentation import show_policy, show_request
from eventservice.console.calls.curl import write_curl
from eventservice.console.calls.response_view import (
    body_view,
    error_of,
    in_words,
    request_body,
    why_no_further_attempt,
)
from eventservice.console.calls.timeline import are_pruned, mood_of, retries_of, said_node, timeline
from eventservice.console.views import Page
from eventservice.db.bulk import to_json
from eventservice.db.now import db_now
from eventservice.kernel.errors import NotFound
from eventservice.operators.action_log import actions_on
from eventservice.tenants.directory import profile
from execution.egress import Limits
from execution.history import attempt_of, attempts_without_bodies, last_attempt
from orchestration.queries.calls import call_of, replays_of
from orchestration.states import FAVORITE, TERMINAL, ResponseContract, Status
from outbox.aggregate_events import timeline_of
from timers.operator_views import nodes
from timers.schedule import timer_of

TABS = {"response": "Response", "request": "Request", "attempts": "Attempts", "events": "Events"}
MOST_EVENTS = 500
EVENTS_PAGE = 100
MOST_REPLAYS = 3
# A call that is overdue for so long has no engine.
LATE = timedelta(seconds=10)
# Beyond it a command line is no use: shells have limits too.
MOST_IN_CURL = 100_000


class Call(Page):
    nav = "calls"
    template = "console/calls/details.html"

    def get(self, request: HttpRequest, tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> HttpResponse:
        call = call_of(tenant_id, service_call_id)
        attempts = attempts_without_bodies(tenant_id, service_call_id)
        events = timeline_of(tenant_id, service_call_id, 0, MOST_EVENTS)
        replays = replays_of(tenant_id, service_call_id, MOST_REPLAYS + 1)
        hosts = hostnames()
        now = db_now()
        chosen = request.GET.get("tab", "")
        tab = chosen if chosen in TABS else "response" if attempts else "request"
        context = {
            **about(call, now),
            "tab": tab,
            "tabs": TABS,
            "timer": timer_of(tenant_id, service_call_id),
            "steps": timeline(call, attempts, events, hosts),
            "events_pruned": are_pruned(events),
            "retries": retries_of(call),
            "replays": replays[:MOST_REPLAYS],
            "more_replays": len(replays) > MOST_REPLAYS,
            "attempts": attempts,
            "actions": [a for a in actions_on(service_call_id) if a.tenant_id == tenant_id],
            **self._of_tab(tab, call, attempts, events, hosts),
        }
        return self.show(context)

    def _of_tab(
        self, tab: str, call: Mapping[str, Any], attempts: Any, events: Any, hosts: Mapping[uuid.UUID, str]
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


def _events_page(request: HttpRequest, call: Mapping[str, Any], events: Any) -> dict[str, Any]:
    after = request.GET.get("after", "")
    start = int(after) if after.isascii() and after.isdecimal() and len(after) < 10 else 0
    page = timeline_of(call["tenant_id"], call["service_call_id"], start, EVENTS_PAGE + 1)
    shown = page[:EVENTS_PAGE]
    return {
        "events": [(event, to_json(event.event_payload)) for event in shown],
        "events_after": shown[-1].aggregate_seq if len(page) > EVENTS_PAGE else None,
    }


def rows_of(attempts: Sequence[Any], hosts: Mapping[uuid.UUID, str]) -> list[tuple[Any, str, str, str, int]]:
    """The last of each is how many attempts are left out before it: they are numbered without a gap."""
    before = [0, *(a.attempt for a in attempts)]
    return [
        (a, mood_of(a), said_node(a.node, hosts), in_words(a.error_kind), a.attempt - number - 1)
        for a, number in zip(attempts, before, strict=False)
    ]


def hostnames() -> dict[uuid.UUID, str]:
    """Of the nodes that are there; one that is gone has only its id."""
    return {node.owner_id: node.hostname for node in nodes()}


def about(call: Mapping[str, Any], now: datetime, *, quick: bool = False) -> dict[str, Any]:
    """What all of a call's pages and parts show of it."""
    status = Status(call["status"])
    return {
        "now": now,
        "call": call,
        "spec": show_request(call["request_spec"]),
        "tenant_id": call["tenant_id"],
        "service_call_id": call["service_call_id"],
        "favorite": FAVORITE in call["tags"],
        "tags": sorted(set(call["tags"]) - {FAVORITE}),
        "is_callback": call["response_contract"] == ResponseContract.CALLBACK,
        "has_ended": status in TERMINAL,
        "may_cancel": status == Status.SCHEDULED
        or (status == Status.RUNNING and not call["cancel_requested"]),
        "is_scheduled": status == Status.SCHEDULED,
        "is_overdue": status == Status.SCHEDULED and call["due_at"] <= now,
        "is_late": status == Status.SCHEDULED and call["due_at"] < now - LATE,
        "error_words": error_of(call),
        "why_final": why_no_further_attempt(call) if status == Status.FAILED else "",
        "live": seconds_to_next_look(call, now, quick=quick),
    }


def seconds_to_next_look(call: Mapping[str, Any], now: datetime, *, quick: bool = False) -> int:
    """0: nothing will change any more."""
    status = Status(call["status"])
    if status in TERMINAL:
        return 0
    soon = 1 if quick else 2
    left = 0.0 if status == Status.RUNNING else (call["due_at"] - now).total_seconds()
    return soon if left < 10 else 3 if left < 60 else 15 if left < 3600 else 60


def asked(call: Mapping[str, Any], *, as_text: bool) -> dict[str, Any]:
    return {
        "body": body_view(request_body(call["request_spec"]), as_text=as_text),
        "as_text": as_text,
        "policy": show_policy(call["retry_policy"]),
        "own_key": next(
            (
                v
                for n, v in (call["request_spec"].get("headers") or {}).items()
                if n.lower() == "idempotency-key"
            ),
            None,
        ),
        "signs": bool(profile(call["tenant_id"]).signing_secret),
        "download": _download(call, "request"),
    }


def answered(request: HttpRequest, call: Mapping[str, Any], address: str, place: str = "") -> dict[str, Any]:
    """An attempt's answer: the one that the request names, or the last. `address` is that of the page that shows it."""
    attempt = _named_attempt(request, call) if call["attempt"] else None
    if attempt is None:
        return {"attempt": None}
    as_text = request.GET.get("view") == "text"
    return {
        "attempt": attempt,
        "mood": mood_of(attempt),
        "words": in_words(attempt.error_kind),
        "body": body_view(attempt.response_body, _size_if_cut(attempt), as_text=as_text),
        "phrase": _PHRASES.get(attempt.response_status, ""),
        "as_text": as_text,
        "laid_out_href": f"{address}{place}",
        "as_text_href": f"{address}&view=text{place}",
        "download": f"{_download(call, 'response')}?attempt={attempt.execution_id}",
    }


def _size_if_cut(attempt: Any) -> int | None:
    """What is kept of a body may be shorter than what came for another reason: masks stand for its secrets."""
    size: int | None = attempt.response_size
    return size if size is not None and size > Limits().keep_body else None


_PHRASES = {status.value: status.phrase for status in HTTPStatus}


def _named_attempt(request: HttpRequest, call: Mapping[str, Any]) -> Any:
    key = call["tenant_id"], call["service_call_id"]
    try:
        named = uuid.UUID(request.GET.get("attempt", ""))
    except ValueError:
        return last_attempt(*key)
    attempt = attempt_of(*key, named)
    if attempt is None:
        raise NotFound("attempt")
    return attempt


def _download(call: Mapping[str, Any], which: str) -> str:
    return reverse(f"console:call-{which}-body", args=[call["tenant_id"], call["service_call_id"]])


class Body(Page):
    """A whole body, as text and as a file: whatever it holds, a browser will not carry it out."""

    nav = "calls"

    def get(
        self, request: HttpRequest, tenant_id: uuid.UUID, service_call_id: uuid.UUID, which: str
    ) -> HttpResponse:
        call = call_of(tenant_id, service_call_id)
        if which == "request":
            text = request_body(call["request_spec"])
        else:
            attempt = _named_attempt(request, call)
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


class Curl(Page):
    """The request as a command line, without the secrets."""

    nav = "calls"
    template = "console/calls/details_curl.html"

    def get(self, request: HttpRequest, tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> HttpResponse:
        call = call_of(tenant_id, service_call_id)
        spec = call["request_spec"]
        body, headers = request_body(spec), show_request(spec)["headers"]
        given = spec.get("headers") or {}
        secrets = sorted(name for name, value in given.items() if isinstance(value, dict))
        is_json = body is not None and not isinstance(spec.get("body"), str)
        if is_json and not any(name.lower() == "content-type" for name in headers):
            headers = {"Content-Type": "application/json", **headers}
        too_large = body is not None and len(body) > MOST_IN_CURL
        command = write_curl(spec["method"], spec["url"], headers, "@" if too_large else body)
        if too_large:
            command = command.removesuffix("--data-raw @") + f"--data-binary @request-{service_call_id}.txt"
        return self.show(
            {
                **about(call, db_now()),
                "command": command,
                "secrets": secrets,
                "too_large": too_large,
                "download": _download(call, "request"),
            }
        )

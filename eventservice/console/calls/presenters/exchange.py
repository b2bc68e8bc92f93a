"""The request and the responses of a call as its pages show them: headers, bodies of a bounded size, attempts."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from django.http import HttpRequest
from django.urls import reverse

from eventservice.api.call_presentation import show_policy
from eventservice.api.parsers import parse_json
from eventservice.api.problems import Problem
from eventservice.console.calls.presenters.call_state import in_words
from eventservice.console.calls.presenters.timeline import (
    mood_of,
    said_node,
)
from eventservice.console.calls.request_form import pretty
from eventservice.kernel.errors import NotFound
from eventservice.tenants.directory import get_profile
from execution.attempt_builder import StoredRequest
from execution.attempt_log import find_attempt, find_last_attempt
from execution.egress import Limits
from orchestration.queries.calls import CallDetails
from timers.operator_views import list_nodes

# Of a body, in characters; the rest can be downloaded.
MOST_SHOWN = 64 * 1024


@dataclass(frozen=True, slots=True)
class Body:
    """`shown` and `size` are bytes, of what is on the page and of the whole."""

    text: str
    shown: int
    size: int
    is_json: bool
    is_cut: bool
    is_kept: bool  # all of it, to be downloaded


def body_view(text: str | None, size: int | None = None, *, as_text: bool = False) -> Body | None:
    """`size` is that of the whole, of which `text` may be the beginning."""
    if not text:
        return None
    stored = len(text.encode(errors="replace"))
    whole = stored if size is None else size
    part = text[:MOST_SHOWN]
    is_cut = len(part) < len(text) or stored < whole
    laid_out = None if is_cut else _laid_out(part)
    return Body(
        text=part if as_text or laid_out is None else laid_out,
        shown=min(len(part.encode(errors="replace")), whole),
        size=whole,
        is_json=laid_out is not None,
        is_cut=is_cut,
        is_kept=stored >= whole,
    )


def _laid_out(text: str) -> str | None:
    """None: it is no JSON, or one that would not look as it is (a name twice in one object)."""
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        return pretty(parse_json(text))
    except (Problem, RecursionError):
        return None


def request_body(spec: Mapping[str, Any]) -> str | None:
    """As it is sent."""
    return StoredRequest.from_spec(spec).body_text


def rows_of(attempts: Sequence[Any], hosts: Mapping[uuid.UUID, str]) -> list[tuple[Any, str, str, str, int]]:
    """The last of each is how many attempts are left out before it: they are numbered without a gap."""
    before = [0, *(a.attempt for a in attempts)]
    return [
        (a, mood_of(a), said_node(a.node, hosts), in_words(a.error_kind), a.attempt - number - 1)
        for a, number in zip(attempts, before, strict=False)
    ]


def hostnames() -> dict[uuid.UUID, str]:
    """Of the nodes that are there; one that is gone has only its id."""
    return {node.owner_id: node.hostname for node in list_nodes()}


def asked(call: CallDetails, *, as_text: bool) -> dict[str, Any]:
    return {
        "body": body_view(request_body(call.request_spec), as_text=as_text),
        "as_text": as_text,
        "policy": show_policy(call.retry_policy),
        "own_key": next(
            (
                v
                for n, v in (call.request_spec.get("headers") or {}).items()
                if n.lower() == "idempotency-key"
            ),
            None,
        ),
        "signs": bool(get_profile(call.tenant_id).signing_secret),
        "download": body_href(call, "request"),
    }


def answered(request: HttpRequest, call: CallDetails, address: str, place: str = "") -> dict[str, Any]:
    """An attempt's answer: the one that the request names, or the last. `address` is that of the page that shows it."""
    attempt = named_attempt(request, call) if call.attempt else None
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
        "download": f"{body_href(call, 'response')}?attempt={attempt.execution_id}",
    }


def _size_if_cut(attempt: Any) -> int | None:
    """What is kept of a body may be shorter than what came for another reason: masks stand for its secrets."""
    size: int | None = attempt.response_size
    return size if size is not None and size > Limits().keep_body else None


_PHRASES = {status.value: status.phrase for status in HTTPStatus}


def named_attempt(request: HttpRequest, call: CallDetails) -> Any:
    key = call.tenant_id, call.service_call_id
    try:
        named = uuid.UUID(request.GET.get("attempt", ""))
    except ValueError:
        return find_last_attempt(*key)
    attempt = find_attempt(*key, named)
    if attempt is None:
        raise NotFound("attempt")
    return attempt


def body_href(call: CallDetails, which: str) -> str:
    return reverse(f"console:call-{which}-body", args=[call.tenant_id, call.service_call_id])

"""The request of a call and the responses to its attempts: bodies of bounded size, headers, and attempt rows."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from django.http import QueryDict
from django.urls import reverse

from eventservice.api.parsers import is_too_deep, parse_json
from eventservice.api.problems import Problem
from eventservice.api.schema.calls import RetryPolicySchema
from eventservice.console.calls.presenters.call_state import build_call_context
from eventservice.db.now import db_now
from eventservice.kernel.errors import NotFound
from eventservice.operators.error_kinds import explain_error_kind
from eventservice.tenants.directory import get_profile
from execution.attempt_builder import StoredRequest
from execution.attempt_log import find_attempt, find_last_attempt, list_attempts_without_bodies
from execution.egress import Limits
from execution.models import HttpExecution
from execution.outcome import ErrorKind
from orchestration.queries.calls import CallDetails, get_call
from orchestration.states import Status
from timers.operator_views import list_nodes

# The part of a body that a page shows, in characters. The whole body can be downloaded.
MAX_BODY_CHARACTERS = 64 * 1024
_PHRASES = {status.value: status.phrase for status in HTTPStatus}


@dataclass(frozen=True, slots=True)
class BodyView:
    """A body as a page shows it. `shown` and `size` are in bytes, of the part on the page and of the whole body."""

    text: str
    shown: int
    size: int
    is_json: bool
    is_cut: bool
    is_stored_whole: bool


def build_body_view(text: str | None, size: int | None = None, *, raw: bool = False) -> BodyView | None:
    """Return the body, formatted if it is JSON and not `raw`. `size` is given if `text` is only its beginning."""
    if not text:
        return None
    stored_size = len(text.encode(errors="replace"))
    whole_size = stored_size if size is None else size
    part = text[:MAX_BODY_CHARACTERS]
    is_cut = len(part) < len(text) or stored_size < whole_size
    formatted = None if is_cut else _format_if_json(part)
    return BodyView(
        text=part if raw or formatted is None else formatted,
        shown=min(len(part.encode(errors="replace")), whole_size),
        size=whole_size,
        is_json=formatted is not None,
        is_cut=is_cut,
        is_stored_whole=stored_size >= whole_size,
    )


def _format_if_json(text: str) -> str | None:
    """Return formatted JSON, or None if the text is none or would change, as an object with a repeated name would."""
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        return format_json(parse_json(text))
    except (Problem, RecursionError):
        return None


def format_json(value: object) -> str:
    """Return the value as indented JSON. What is nested very deeply stays on one line: its indentation would be longer than
    the value by a factor of a thousand."""
    return json.dumps(value, indent=None if is_too_deep(value) else 2, ensure_ascii=False)


# --- the request --------------------------------------------------------------------------------------------------


def get_request_body(spec: Mapping[str, Any]) -> str | None:
    """Return the body as it is sent."""
    return StoredRequest.from_spec(spec).body_text


def build_request_context(call: CallDetails, *, raw: bool) -> dict[str, object]:
    headers = call.request_spec.get("headers") or {}
    return {
        "body": build_body_view(get_request_body(call.request_spec), raw=raw),
        "raw": raw,
        "policy": RetryPolicySchema.from_stored(call.retry_policy),
        "has_own_idempotency_key": any(name.lower() == "idempotency-key" for name in headers),
        "signs": bool(get_profile(call.tenant_id).signing_secret),
        "download_url": build_download_url(call, "request"),
    }


def build_download_url(call: CallDetails, which: str) -> str:
    return reverse(f"console:call-{which}-body", args=[call.tenant_id, call.service_call_id])


# --- attempts and their responses -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """An attempt in the list of attempts. `omitted_before` is how many attempts are left out before it."""

    attempt: HttpExecution
    tone: str
    node: str
    explanation: str
    omitted_before: int


def build_attempt_rows(
    attempts: Sequence[HttpExecution], hostnames: Mapping[uuid.UUID, str]
) -> list[AttemptRow]:
    previous_numbers = [0, *(attempt.attempt for attempt in attempts)]
    return [
        AttemptRow(
            attempt=attempt,
            tone=get_attempt_tone(attempt),
            node=format_node(attempt.node, hostnames),
            explanation=explain_error_kind(attempt.error_kind),
            omitted_before=attempt.attempt - previous - 1,
        )
        for attempt, previous in zip(attempts, previous_numbers, strict=False)
    ]


def get_attempt_tone(attempt: HttpExecution) -> str:
    """Return "waiting", "good", "warn" or "bad", by which the pages choose a color."""
    if attempt.finished_at is None:
        return "waiting"
    if attempt.error_kind:
        return "warn" if attempt.error_kind == ErrorKind.INTERRUPTED else "bad"
    return "good" if 200 <= (attempt.response_status or 0) < 300 else "bad"


def get_hostnames() -> dict[uuid.UUID, str]:
    """Return the host names of the known nodes. Of older nodes, only the ID is left."""
    return {node.owner_id: node.hostname for node in list_nodes()}


def format_node(node: uuid.UUID, hostnames: Mapping[uuid.UUID, str]) -> str:
    return hostnames.get(node) or f"…{str(node)[-8:]}"


def build_response_context(
    call: CallDetails, parameters: QueryDict, *, url: str, fragment: str = ""
) -> dict[str, object]:
    """Return the response to the attempt that `parameters` choose. `url` and `fragment` are those of its page."""
    attempt = get_chosen_attempt(call, parameters) if call.attempt else None
    if attempt is None:
        return {"attempt": None}
    raw = parameters.get("view") == "text"
    return {
        "attempt": attempt,
        "tone": get_attempt_tone(attempt),
        "explanation": explain_error_kind(attempt.error_kind),
        "body": build_body_view(attempt.response_body, _find_full_size(attempt), raw=raw),
        "phrase": _PHRASES.get(attempt.response_status or 0, ""),
        "raw": raw,
        "formatted_url": f"{url}{fragment}",
        "raw_url": f"{url}&view=text{fragment}",
        "download_url": f"{build_download_url(call, 'response')}?attempt={attempt.execution_id}",
    }


def build_exchange_context(
    call: CallDetails, parameters: QueryDict, *, url: str, fragment: str
) -> dict[str, object]:
    """Return the state of a call with its response, and its attempts if there are several. It refreshes fast."""
    attempts = list_attempts_without_bodies(*call.key)
    response = build_response_context(call, parameters, url=url, fragment=fragment)
    current = catch_up(call, [*attempts, response["attempt"]])
    return {
        "rows": build_attempt_rows(attempts, get_hostnames()) if len(attempts) > 1 else [],
        **build_call_context(current, db_now(), refresh_fast=True),
        **response,
    }


def catch_up(call: CallDetails, attempts: Iterable[object]) -> CallDetails:
    """Return the call, read again if the attempts, which were read after it, are ahead of it.

    A page would say that the call is running, above the response to its last attempt.
    """
    read = [attempt for attempt in attempts if isinstance(attempt, HttpExecution)]
    is_running = call.status == Status.RUNNING
    is_behind = any(
        attempt.attempt > call.attempt
        or (is_running and attempt.attempt == call.attempt and attempt.finished_at is not None)
        for attempt in read
    )
    return get_call(*call.key) if is_behind else call


def get_chosen_attempt(call: CallDetails, parameters: QueryDict) -> HttpExecution | None:
    """Return the attempt that `parameters` name, or else the last one. Raise NotFound if it does not exist."""
    try:
        execution_id = uuid.UUID(parameters.get("attempt", ""))
    except ValueError:
        return find_last_attempt(*call.key)
    attempt = find_attempt(*call.key, execution_id)
    if attempt is None:
        raise NotFound("attempt")
    return attempt


def _find_full_size(attempt: HttpExecution) -> int | None:
    """Return the size of a body that was not stored whole. A stored body may also be shorter because it is masked."""
    size = attempt.response_size
    return size if size is not None and size > Limits().keep_body else None

"""What came back: bodies as text, of a size that a page can bear, and errors in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eventservice.api.parsers import parse_json
from eventservice.api.problems import Problem
from eventservice.console.calls.request_form import pretty
from execution.outcome import ErrorKind
from execution.runner import Request
from orchestration.outcome_rules import PASSING_KINDS, PASSING_STATUSES
from orchestration.retries import RetryPolicy
from orchestration.states import Delivery

# Of a body, in characters; the rest can be downloaded.
MOST_SHOWN = 64 * 1024

IN_WORDS = {
    ErrorKind.TIMEOUT: "The target did not answer in time.",
    ErrorKind.DNS: "The name of the host could not be resolved.",
    ErrorKind.CONNECT: "No connection to the host could be made.",
    ErrorKind.TLS: "The host's certificate, or its way of encrypting, was refused.",
    ErrorKind.PROTOCOL: "What came back was not valid HTTP, or the connection broke off.",
    ErrorKind.TOO_LARGE: "The answer was larger than what is taken.",
    ErrorKind.HTTP_STATUS: "The target answered, but not with success.",
    ErrorKind.REJECTED: 'The callback did not answer {"ok": true}.',
    ErrorKind.EGRESS: "The request was not sent: a rule of this service forbids it.",
    ErrorKind.INTERRUPTED: "The end of the attempt was not seen: the process that made it ended.",
}


def in_words(kind: str | None) -> str:
    try:
        return IN_WORDS[ErrorKind(kind or "")]
    except ValueError:
        return ""


def error_of(call: Mapping[str, Any]) -> str:
    """Why a call has not succeeded so far, in a sentence."""
    error = (call["outcome_meta"] or {}).get("errorMeta") or {}
    # Of an answer, its status says more than its kind.
    is_answer = error.get("kind") in (ErrorKind.HTTP_STATUS, ErrorKind.REJECTED)
    return str(error.get("message", "")) if is_answer else in_words(error.get("kind"))


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
    return Request.from_spec(spec).body_text


def why_no_further_attempt(call: Mapping[str, Any]) -> str:
    """Of a call that has failed."""
    meta = call["outcome_meta"] or {}
    error, response = meta.get("errorMeta") or {}, meta.get("responseMeta") or {}
    kind, status = error.get("kind"), response.get("status")
    policy = RetryPolicy.from_stored(call["retry_policy"])
    if kind == ErrorKind.INTERRUPTED:
        return _why_interrupted_for_good(call)
    if kind == ErrorKind.HTTP_STATUS and status and status < 500 and status not in PASSING_STATUSES:
        return f"A call that is answered with {status} is not tried again."
    if kind not in PASSING_KINDS | {ErrorKind.HTTP_STATUS, ErrorKind.REJECTED}:
        return "This is not tried again."
    attempts = call["attempt"] - call["interruptions"]
    if attempts >= policy.max_attempts:
        return f"All {attempts} attempts were made." if attempts > 1 else "No retries were asked for."
    if call["delivery"] == Delivery.AT_MOST_ONCE:
        return "It is delivered at most once, and the request may have been sent."
    return "The time for its attempts is over."


def _why_interrupted_for_good(call: Mapping[str, Any]) -> str:
    if call["delivery"] == Delivery.AT_MOST_ONCE:
        return "It is delivered at most once, so it was not made again."
    return "It was interrupted too often to be made again."

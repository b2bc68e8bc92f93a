"""What came back: bodies as text, of a size that a page can bear, and errors in words."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from eventservice.api.call_presentation import show_request
from execution.outcome import ErrorKind
from orchestration.outcome_rules import RETRYABLE_ERRORS, RETRYABLE_STATUSES
from orchestration.queries.calls import CallDetails
from orchestration.retries import RetryPolicy
from orchestration.states import FAVORITE, TERMINAL, Delivery, ResponseContract, Status

# A call that is overdue for so long has no engine.
LATE = timedelta(seconds=10)


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


def error_of(call: CallDetails) -> str:
    """Why a call has not succeeded so far, in a sentence."""
    error = (call.outcome_meta or {}).get("errorMeta") or {}
    # Of an answer, its status says more than its kind.
    is_answer = error.get("kind") in (ErrorKind.HTTP_STATUS, ErrorKind.REJECTED)
    return str(error.get("message", "")) if is_answer else in_words(error.get("kind"))


def why_no_further_attempt(call: CallDetails) -> str:
    """Of a call that has failed."""
    meta = call.outcome_meta or {}
    error, response = meta.get("errorMeta") or {}, meta.get("responseMeta") or {}
    kind, status = error.get("kind"), response.get("status")
    policy = RetryPolicy.from_stored(call.retry_policy)
    if kind == ErrorKind.INTERRUPTED:
        return _why_interrupted_for_good(call)
    if kind == ErrorKind.HTTP_STATUS and status and status < 500 and status not in RETRYABLE_STATUSES:
        return f"A call that is answered with {status} is not tried again."
    if kind not in RETRYABLE_ERRORS | {ErrorKind.HTTP_STATUS, ErrorKind.REJECTED}:
        return "This is not tried again."
    attempts = call.attempt - call.interruptions
    if attempts >= policy.max_attempts:
        return f"All {attempts} attempts were made." if attempts > 1 else "No retries were asked for."
    if call.delivery == Delivery.AT_MOST_ONCE:
        return "It is delivered at most once, and the request may have been sent."
    return "The time for its attempts is over."


def _why_interrupted_for_good(call: CallDetails) -> str:
    if call.delivery == Delivery.AT_MOST_ONCE:
        return "It is delivered at most once, so it was not made again."
    return "It was interrupted too often to be made again."


def about(call: CallDetails, now: datetime, *, quick: bool = False) -> dict[str, Any]:
    """What all of a call's pages and parts show of it."""
    status = Status(call.status)
    return {
        "now": now,
        "call": call,
        "spec": show_request(call.request_spec),
        "tenant_id": call.tenant_id,
        "service_call_id": call.service_call_id,
        "favorite": FAVORITE in call.tags,
        "tags": sorted(set(call.tags) - {FAVORITE}),
        "is_callback": call.response_contract == ResponseContract.CALLBACK,
        "has_ended": status in TERMINAL,
        "may_cancel": status == Status.SCHEDULED or (status == Status.RUNNING and not call.cancel_requested),
        "is_scheduled": status == Status.SCHEDULED,
        "is_overdue": status == Status.SCHEDULED and call.due_at <= now,
        "is_late": status == Status.SCHEDULED and call.due_at < now - LATE,
        "error_words": error_of(call),
        "why_final": why_no_further_attempt(call) if status == Status.FAILED else "",
        "live": seconds_to_next_look(call, now, quick=quick),
    }


def seconds_to_next_look(call: CallDetails, now: datetime, *, quick: bool = False) -> int:
    """0: nothing will change any more."""
    status = Status(call.status)
    if status in TERMINAL:
        return 0
    soon = 1 if quick else 2
    left = 0.0 if status == Status.RUNNING else (call.due_at - now).total_seconds()
    return soon if left < 10 else 3 if left < 60 else 15 if left < 3600 else 60

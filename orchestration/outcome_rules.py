"""Decide what an attempt's outcome means for its call. Pure functions of the outcome, the contract and the policy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, assert_never

from execution.outcome import Errored, ErrorKind, Outcome, Responded
from execution.redaction import mask_response_headers
from orchestration.retries import RetryPolicy
from orchestration.states import Delivery, ResponseContract

# Another attempt may succeed: the target, or the network, may recover.
RETRYABLE_ERRORS = frozenset(
    {ErrorKind.TIMEOUT, ErrorKind.DNS, ErrorKind.CONNECT, ErrorKind.TLS, ErrorKind.PROTOCOL}
)
RETRYABLE_STATUSES = frozenset({408, 425, 429})
CALLBACK_RULE = 'A timer\'s callback must answer 200 with {"ok": true}.'
NEXT_EXECUTE_AT_RULE = 'it must be a time with an offset, such as "2026-03-01T12:00:00Z".'
MAX_SNIPPET_LENGTH = 2048
MAX_RETRY_AFTER_SECONDS = timedelta(days=1).total_seconds()
# Ten years, up to three of them leap years.
MAX_DELAY = timedelta(days=3653)


@dataclass(frozen=True, slots=True)
class Success:
    meta: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Failure:
    meta: dict[str, Any]
    retryable: bool = False
    retry_after: float | None = None  # the delay in seconds that the target asked for
    requested_at: datetime | None = None  # the time that a callback asked for (nextExecuteAt)


Verdict = Success | Failure


@dataclass(frozen=True, slots=True)
class RetryTerms:
    """A call's terms as far as they decide on a retry, and its failures so far."""

    contract: str
    delivery: str
    policy: RetryPolicy
    failures: int  # this one included
    first_started_at: datetime


def judge(contract: str, outcome: Outcome, now: datetime) -> Verdict:
    match outcome:
        case Errored():
            return Failure(build_error_meta(outcome), retryable=outcome.kind in RETRYABLE_ERRORS)
        case Responded() if contract == ResponseContract.CALLBACK:
            return _judge_callback(outcome, now)
        case Responded():
            return _judge_status(outcome, now)
        case _:
            assert_never(outcome)


def compute_next_attempt(
    terms: RetryTerms, failure: Failure, outcome: Outcome, now: datetime
) -> datetime | None:
    """Return when the call is attempted again, or None if it has failed."""
    if failure.requested_at is not None:
        return terms.policy.compute_requested_at(now, failure.requested_at, failures=terms.failures)
    if not failure.retryable:
        return None
    if terms.delivery == Delivery.AT_MOST_ONCE and not _is_surely_unsent(outcome):
        return None
    return terms.policy.compute_next_at(
        now, failures=terms.failures, first_started_at=terms.first_started_at, not_before=failure.retry_after
    )


def build_error_meta(error: Errored) -> dict[str, Any]:
    return _build_error(error.kind, error.message, dict(error.details), error.timings.total_ms)


def build_interrupted_meta(message: str) -> dict[str, Any]:
    return _build_error(ErrorKind.INTERRUPTED, message, {}, None)


def _judge_status(response: Responded, now: datetime) -> Verdict:
    meta = _build_response_meta(response)
    if 200 <= response.status < 300:
        return Success(meta)
    return _fail_by_status(response, meta, f"The target answered with status {response.status}.", now)


def _fail_by_status(response: Responded, meta: dict[str, Any], message: str, now: datetime) -> Failure:
    meta |= _build_error(
        ErrorKind.HTTP_STATUS, message, {"status": response.status}, response.timings.total_ms
    )
    retryable = response.status in RETRYABLE_STATUSES or response.status >= 500
    return Failure(
        meta, retryable=retryable, retry_after=_parse_retry_after(response, now) if retryable else None
    )


def _judge_callback(response: Responded, now: datetime) -> Verdict:
    """A 200 with {"ok": true} is a success, a 4xx is final (but for those in RETRYABLE_STATUSES), and everything else is
    retried."""
    meta = _build_response_meta(response)
    if response.status != 200:
        message = f"The callback answered with status {response.status}. {CALLBACK_RULE}"
        failure = _fail_by_status(response, meta, message, now)
        final = 400 <= response.status < 500 and response.status not in RETRYABLE_STATUSES
        return Failure(failure.meta, retryable=not final, retry_after=failure.retry_after)
    answer = _parse_answer(response.body)
    if answer.get("ok") is True:
        return Success(meta)
    requested_at = _parse_next_execute_at(answer, now) if answer.get("ok") is False else None
    message = _describe_rejection(answer, accepted_time=requested_at is not None)
    meta |= _build_error(ErrorKind.REJECTED, message, {}, response.timings.total_ms)
    return Failure(meta, retryable=True, requested_at=requested_at)


def _describe_rejection(answer: Mapping[str, Any], *, accepted_time: bool) -> str:
    # Null is how many programs write that there is no time.
    is_ignored = answer.get("nextExecuteAt") is not None and not accepted_time
    if answer.get("ok") is False:
        if is_ignored:
            return f'The callback answered {{"ok": false}}, and its nextExecuteAt was ignored: {NEXT_EXECUTE_AT_RULE}'
        return 'The callback answered {"ok": false}.'
    message = f"The callback answered with status 200, but with another body. {CALLBACK_RULE}"
    return (
        f'{message} Its nextExecuteAt was ignored: it counts only with "ok": false.'
        if is_ignored
        else message
    )


def _parse_answer(body: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):  # not JSON, or nested too deeply
        return {}
    return answer if isinstance(answer, dict) else {}


def _parse_next_execute_at(answer: dict[str, Any], now: datetime) -> datetime | None:
    try:
        requested = datetime.fromisoformat(answer["nextExecuteAt"])
        return min(max(requested, now), now + MAX_DELAY).astimezone(UTC)
    except (KeyError, ValueError, TypeError):  # absent, not a time, or without a zone
        return None


def _parse_retry_after(response: Responded, now: datetime) -> float | None:
    value = next((value for name, value in response.headers if name.lower() == "retry-after"), "").strip()
    if value.isdecimal() and value.isascii():
        return min(float(value[:10]), MAX_RETRY_AFTER_SECONDS)
    try:
        return min(max((parsedate_to_datetime(value) - now).total_seconds(), 0.0), MAX_RETRY_AFTER_SECONDS)
    except (ValueError, TypeError, OverflowError):  # not a date, without a zone, or out of range
        return None


def _is_surely_unsent(outcome: Outcome) -> bool:
    return isinstance(outcome, Errored) and not outcome.may_have_been_sent


def _build_response_meta(response: Responded) -> dict[str, Any]:
    snippet = response.body[:MAX_SNIPPET_LENGTH].decode(errors="replace").replace("\0", "\ufffd")
    return {
        "responseMeta": {
            "status": response.status,
            "headers": mask_response_headers(response.headers),
            "bodySnippet": snippet,
            "latencyMs": round(response.timings.total_ms, 1),
        }
    }


def _build_error(
    kind: ErrorKind, message: str, details: dict[str, Any], latency_ms: float | None
) -> dict[str, Any]:
    latency = None if latency_ms is None else round(latency_ms, 1)
    return {"errorMeta": {"kind": kind.value, "message": message, "details": details, "latencyMs": latency}}

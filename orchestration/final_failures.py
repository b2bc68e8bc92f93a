"""Why a call that has failed was not attempted again, in words for people."""

from __future__ import annotations

from typing import Any

from execution.outcome import ErrorKind
from orchestration.outcome_rules import RETRYABLE_ERRORS, RETRYABLE_STATUSES
from orchestration.queries.calls import CallDetails
from orchestration.retries import RetryPolicy
from orchestration.states import Delivery, ResponseContract, Status


def explain_final_failure(call: CallDetails) -> str | None:
    """Return why a failed call was not attempted again, as a sentence, or None if the call has not failed."""
    if call.status != Status.FAILED:
        return None
    meta = call.outcome_meta or {}
    error, response = meta.get("errorMeta") or {}, meta.get("responseMeta") or {}
    kind, status = error.get("kind"), response.get("status")
    if kind == ErrorKind.INTERRUPTED:
        return _explain_final_interruption(call)
    if kind == ErrorKind.HTTP_STATUS and status and _is_final_status(status, call.response_contract):
        return f"Status {status} is not retried."
    if kind not in RETRYABLE_ERRORS | {ErrorKind.HTTP_STATUS, ErrorKind.REJECTED}:
        return "This error is not retried."
    policy = RetryPolicy.from_stored(call.retry_policy)
    attempts = call.attempt - call.interruptions
    if attempts > policy.max_attempts:
        return "The retry policy allows no further attempt."
    if attempts == policy.max_attempts:
        return f"All {attempts} attempts were made." if attempts > 1 else "Only one attempt was allowed."
    if call.delivery == Delivery.AT_MOST_ONCE:
        return "The call is delivered at most once, and its request may already have been sent."
    return _explain_time_limit(response)


def _is_final_status(status: int, contract: str) -> bool:
    if status in RETRYABLE_STATUSES or status >= 500:
        return False
    # The callback of a timer may repeat what is neither a success nor a 4xx.
    return status >= 400 or contract != ResponseContract.CALLBACK


def _explain_final_interruption(call: CallDetails) -> str:
    if call.delivery == Delivery.AT_MOST_ONCE:
        return "The call is delivered at most once, so it was not attempted again."
    return "It was interrupted too often to be attempted again."


def _explain_time_limit(response: dict[str, Any]) -> str:
    headers = {name.lower(): value for name, value in (response.get("headers") or {}).items()}
    late = "The next attempt would start later than maxAttemptsDuration of the retry policy allows"
    requested = headers.get("retry-after")
    return f"{late}: the response asked for a pause (Retry-After: {requested})." if requested else f"{late}."

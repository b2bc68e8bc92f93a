"""Where a call stands, in words: its state, its last error, and why it was not attempted again."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from eventservice.api.schema.calls import RequestSpecSchema
from eventservice.operators.error_kinds import explain_error_kind, get_error_name
from execution.outcome import ErrorKind
from orchestration.final_failures import explain_final_failure
from orchestration.queries.calls import CallDetails, CallView
from orchestration.retries import RetryPolicy
from orchestration.states import FAVORITE, TERMINAL, ResponseContract, Status

# A delay that an operator would notice is shown; a longer one is highlighted.
NOTICEABLE_DELAY = timedelta(seconds=1)
LATE_AFTER = timedelta(seconds=5)

RETRYING = "Retrying"


def get_shown_status(call: CallView) -> str:
    """Return the status as pages show it: a call that waits for another attempt is Retrying, not Scheduled."""
    return RETRYING if call.status == Status.SCHEDULED and call.attempt else call.status


def explain_last_error(call: CallDetails) -> str:
    """Return why the call has not succeeded so far, as a sentence."""
    error = (call.outcome_meta or {}).get("errorMeta") or {}
    # If there was a response, its message names the status.
    has_response = error.get("kind") in (ErrorKind.HTTP_STATUS, ErrorKind.REJECTED)
    return str(error.get("message", "")) if has_response else explain_error_kind(error.get("kind"))


def name_last_error(call: CallView) -> str:
    """Return a few words about why the last attempt failed, or an empty string."""
    meta = call.outcome_meta or {}
    error, response = meta.get("errorMeta") or {}, meta.get("responseMeta") or {}
    return get_error_name(error.get("kind"), response.get("status")) if error else ""


@dataclass(frozen=True, slots=True)
class RetryProgress:
    """How many attempts have been made of those that the retry policy allows. Interrupted attempts do not count."""

    made: int
    max_attempts: int
    next_at: datetime | None
    until: datetime | None

    @property
    def is_within_policy(self) -> bool:
        """Return False if the callback of a timer asked for more attempts than the policy allows."""
        return self.made + (self.next_at is not None) <= self.max_attempts


def compute_retry_progress(call: CallDetails) -> RetryProgress:
    policy = RetryPolicy.from_stored(call.retry_policy)
    started, duration = call.started_at, policy.max_attempts_duration
    return RetryProgress(
        made=call.attempt - call.interruptions,
        max_attempts=policy.max_attempts,
        next_at=call.due_at if call.status == Status.SCHEDULED and call.attempt else None,
        until=started + timedelta(seconds=duration) if started and duration else None,
    )


def build_call_context(call: CallDetails, now: datetime, *, refresh_fast: bool = False) -> dict[str, object]:
    """Return what every page and fragment about a call shows."""
    status = Status(call.status)
    is_scheduled = status == Status.SCHEDULED
    return {
        "now": now,
        "call": call,
        "spec": RequestSpecSchema.from_stored(call.request_spec),
        "tenant_id": call.tenant_id,
        "service_call_id": call.service_call_id,
        "favorite": FAVORITE in call.tags,
        "tags": sorted(set(call.tags) - {FAVORITE}),
        "is_callback": call.response_contract == ResponseContract.CALLBACK,
        "has_ended": status in TERMINAL,
        "may_cancel": is_scheduled or (status == Status.RUNNING and not call.cancel_requested),
        "is_scheduled": is_scheduled,
        "shown_status": get_shown_status(call),
        "is_retrying": is_scheduled and bool(call.attempt),
        "retries": compute_retry_progress(call),
        "last_error_name": name_last_error(call),
        "is_overdue": is_scheduled and call.due_at <= now,
        "is_late": is_scheduled and call.due_at < now - LATE_AFTER,
        "last_error": explain_last_error(call),
        "final_failure": explain_final_failure(call) or "",
        "refresh_seconds": compute_refresh_seconds(call, now, fast=refresh_fast),
    }


def compute_refresh_seconds(call: CallView, now: datetime, *, fast: bool = False) -> int:
    """Return how long a page may wait until it refreshes, or 0 if the call cannot change any more."""
    status = Status(call.status)
    if status in TERMINAL:
        return 0
    soon = 1 if fast else 2
    left = 0.0 if status == Status.RUNNING else (call.due_at - now).total_seconds()
    return soon if left < 10 else 3 if left < 60 else 15 if left < 3600 else 60

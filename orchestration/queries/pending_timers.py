"""Pending timers of a timer store as calls, for those of which this database has none yet."""

from __future__ import annotations

from typing import Any

from execution.url_rules import parse_target
from orchestration.queries.calls import DEFAULT_MAX_ATTEMPTS, CallSummary, TimerCall
from orchestration.states import ResponseContract, Status
from orchestration.timer_callbacks import build_stored_timer_command
from timers.stores.port import StoredTimer


def build_timer_call(timer: StoredTimer) -> TimerCall:
    request = build_stored_timer_command(timer).request
    return TimerCall(
        **_build_view(timer),
        request_spec={"method": request.method, "url": request.url, "headers": {}, "body": request.body},
        retry_policy=None if timer.retry_policy is None else dict(timer.retry_policy),
        timeout_seconds=timer.callback_timeout_seconds,
    )


def build_summary(timer: StoredTimer) -> CallSummary:
    request = build_stored_timer_command(timer).request
    policy = timer.retry_policy or {}
    return CallSummary(
        **_build_view(timer),
        method=request.method,
        url=request.url,
        execute_at=request.body["executeAt"],
        max_attempts=policy.get("max_attempts", DEFAULT_MAX_ATTEMPTS),
        tags=[],
    )


def _build_view(timer: StoredTimer) -> dict[str, Any]:
    key, progress = timer.key, timer.progress
    return {
        "tenant_id": key.namespace.tenant_id,
        "service_call_id": timer.revision,
        "name": key.timer_id,
        "status": Status.SCHEDULED.value,
        "submitted_at": timer.created_at,
        "due_at": timer.execute_at,
        "started_at": progress.first_started_at,
        "finished_at": None,
        "outcome_meta": None,
        "namespace": key.namespace.name,
        "external_id": key.timer_id,
        "host": parse_target(timer.callback_url).host,
        "correlation_id": timer.revision,
        "replay_of": None,
        "response_contract": ResponseContract.CALLBACK.value,
        "attempt": progress.attempts + progress.interruptions,
        "cancel_requested": False,
    }

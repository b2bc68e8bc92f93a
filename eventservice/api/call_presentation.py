"""How a service call looks from outside: secrets masked, times in UTC with milliseconds, names in camelCase."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from eventservice.api.formats import format_duration, format_instant
from execution.redaction import mask_headers, mask_stored_headers
from orchestration.commands import SubmitServiceCall
from orchestration.queries.calls import CallDetails, CallSummary, CallView
from orchestration.retries import RetryPolicy
from orchestration.states import FAVORITE


def show_call(call: CallDetails) -> dict[str, Any]:
    """`call` has the columns of a service call, and `tags`."""
    return {
        **_identity(call),
        "requestSpec": show_request(call.request_spec),
        "outcome": call.outcome_meta,
        "tags": sorted(call.tags),
        "favorite": FAVORITE in call.tags,
        "idempotencyKey": call.idempotency_key,
        "correlationId": str(call.correlation_id),
        "replayOf": None if call.replay_of is None else str(call.replay_of),
        "retryPolicy": show_policy(call.retry_policy),
        "timeoutSeconds": call.timeout_seconds,
        "responseContract": call.response_contract,
        "delivery": call.delivery,
        "attempts": call.attempt,
        "cancelRequested": bool(call.cancel_requested),
    }


def _identity(call: CallView) -> dict[str, Any]:
    """What a call shows of itself everywhere."""
    return {
        "serviceCallId": str(call.service_call_id),
        "tenantId": str(call.tenant_id),
        "name": call.name,
        "status": call.status,
        "namespace": call.namespace,
        "timerId": call.external_id,
        "submittedAt": format_instant(call.submitted_at),
        "dueAt": format_instant(call.due_at),
        "startedAt": format_instant(call.started_at),
        "finishedAt": format_instant(call.finished_at),
    }


def show_listed(call: CallSummary) -> dict[str, Any]:
    """In a list: no bodies, no headers."""
    return {
        **_identity(call),
        "request": {"method": call.method, "url": call.url, "host": call.host},
        "outcome": show_summary(call.outcome_meta),
        "tags": sorted(call.tags),
        "favorite": FAVORITE in call.tags,
        "correlationId": str(call.correlation_id),
        "replayOf": call.replay_of and str(call.replay_of),
        "attempts": call.attempt,
    }


def show_summary(outcome: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if outcome is None:
        return None
    response, error = outcome.get("responseMeta") or {}, outcome.get("errorMeta") or {}
    return {
        "status": response.get("status"),
        "errorKind": error.get("kind"),
        "latencyMs": response.get("latencyMs", error.get("latencyMs")),
    }


def show_event(event: Any) -> dict[str, Any]:
    return {
        "id": str(event.event_id),
        "type": event.event_type,
        "seq": event.aggregate_seq,
        "occurredAt": format_instant(event.created_at),
        "correlationId": str(event.correlation_id),
        "causationId": event.causation_id and str(event.causation_id),
        "data": event.event_payload,
    }


def show_request(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "method": spec["method"],
        "url": spec["url"],
        "headers": mask_stored_headers(spec.get("headers") or {}),
        "body": spec.get("body"),
    }


def show_policy(stored: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if stored is None:
        return None
    policy = RetryPolicy.from_stored(stored)
    return {
        "maxAttempts": policy.max_attempts,
        "maxAttemptsDuration": format_duration(policy.max_attempts_duration),
        "initialInterval": format_duration(policy.initial_interval),
        "backoffMultiplier": policy.backoff_multiplier,
        "maxInterval": format_duration(policy.max_interval),
    }


def show_submitted(
    command: SubmitServiceCall, submitted_at: datetime, due_at: datetime, secret_headers: frozenset[str]
) -> dict[str, Any]:
    """A call that has just been stored, as it would be read (a test holds both together)."""
    call = show_call(
        CallDetails(
            service_call_id=command.service_call_id,
            tenant_id=command.tenant_id,
            name=command.name,
            status="Scheduled",
            namespace=command.namespace,
            external_id=command.external_id,
            submitted_at=submitted_at,
            due_at=due_at,
            started_at=None,
            finished_at=None,
            request_spec={
                "method": command.request.method,
                "url": command.request.url,
                "headers": mask_headers(command.request.headers, secret_headers),
                "body": command.request.body,
            },
            outcome_meta=None,
            tags=sorted(command.tags),
            idempotency_key=command.idempotency_key,
            correlation_id=command.correlation_id,
            replay_of=command.replay_of,
            retry_policy=command.retry_policy.to_stored() if command.retry_policy else None,
            timeout_seconds=command.timeout_seconds,
            response_contract=command.response_contract.value,
            delivery=command.delivery.value,
            attempt=0,
            cancel_requested=False,
            interruptions=0,
            host=command.request.host,
        )
    )
    timer = {"state": "Scheduled", "dueAt": format_instant(due_at), "reachedAt": None}
    return {**call, "timer": timer, "lastAttempt": None}


def show_timer(timer: Any) -> dict[str, Any] | None:
    if timer is None:
        return None
    return {
        "state": timer.state,
        "dueAt": format_instant(timer.due_at),
        "reachedAt": format_instant(timer.reached_at),
    }


def show_attempt(attempt: Any) -> dict[str, Any]:
    return {
        "executionId": str(attempt.execution_id),
        "attempt": attempt.attempt,
        "node": str(attempt.node),
        "startedAt": format_instant(attempt.started_at),
        "finishedAt": format_instant(attempt.finished_at),
        "request": {
            "method": attempt.request_method,
            "url": attempt.request_url,
            "headers": attempt.request_headers,
            "body": attempt.request_body,
        },
        "response": _show_response(attempt),
        "error": attempt.error_kind and {"kind": attempt.error_kind, "message": attempt.error_message},
        "latencyMs": None if attempt.latency_ms is None else round(attempt.latency_ms, 1),
        "phases": attempt.phases,
    }


def _show_response(attempt: Any) -> dict[str, Any] | None:
    if attempt.response_status is None:
        return None
    return {
        "status": attempt.response_status,
        "headers": attempt.response_headers,
        "body": attempt.response_body,
        "size": attempt.response_size,
    }

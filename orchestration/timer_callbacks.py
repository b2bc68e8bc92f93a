"""The service call that carries out a durable timer: a POST to its callback URL, whose response decides what is next.

The stored body is that of the callback, except for `attempt`, which is filled in when an attempt starts
(orchestration.lifecycle).
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import datetime
from typing import Any

from eventservice.db.now import to_rfc3339
from orchestration.commands import RequestSpec, SubmitServiceCall
from orchestration.models import ServiceCall
from orchestration.retries import RetryPolicy
from orchestration.states import ResponseContract
from timers.stores.port import QualifiedNamespace, Revision, StoredTimer, TimerKey, round_up

MAX_CALL_NAME_LENGTH = 200


def build_timer_command(
    tenant_id: uuid.UUID,
    correlation_id: uuid.UUID,
    key: tuple[str, str],
    *,
    execute_at: datetime,
    callback_url: str,
    timeout_seconds: float,
    due_at: datetime | None = None,
    payload: Any = None,
    retry_policy: RetryPolicy | None = None,
) -> SubmitServiceCall:
    """Return the call of a timer, whose key is its namespace and id.

    `execute_at` is the time that was set, and never changes. `due_at` is when the next callback is sent, if that is a
    different time.
    """
    namespace, timer_id = key
    body = {
        "namespace": namespace,
        "timerId": timer_id,
        "payload": payload,
        "executeAt": to_rfc3339(execute_at),
    }
    return SubmitServiceCall(
        tenant_id=tenant_id,
        name=timer_id[:MAX_CALL_NAME_LENGTH],
        request=RequestSpec("POST", callback_url, {}, body),
        due_at=due_at or execute_at,
        namespace=namespace,
        external_id=timer_id,
        correlation_id=correlation_id,
        retry_policy=retry_policy,
        timeout_seconds=timeout_seconds,
        response_contract=ResponseContract.CALLBACK,
    )


def list_call_fields(call: ServiceCall) -> dict[str, Any]:
    """Return the arguments of `build_timer_command` that made the call of a timer."""
    spec, policy = call.request_spec, call.retry_policy
    return {
        "execute_at": datetime.fromisoformat(spec["body"]["executeAt"]),
        "due_at": call.due_at,
        "callback_url": spec["url"],
        "payload": spec["body"]["payload"],
        "retry_policy": RetryPolicy.from_stored(policy) if policy else None,
        "timeout_seconds": call.timeout_seconds,
    }


# --- timers in a timer store --------------------------------------------------------------------------------------


def build_stored_timer(command: SubmitServiceCall, num_shards: int, now: datetime) -> StoredTimer:
    """Return a timer for a timer store. The id that its call would have becomes its revision."""
    body, policy = command.request.body, command.retry_policy
    namespace = QualifiedNamespace(command.tenant_id, command.namespace)
    return StoredTimer(
        TimerKey.build(namespace, command.external_id or "", num_shards),
        Revision(command.service_call_id),
        execute_at=round_up(command.compute_due_at(now)),
        requested_at=round_up(datetime.fromisoformat(body["executeAt"])),
        created_at=round_up(now),
        callback_url=command.request.url,
        payload=body["payload"],
        retry_policy=None if policy is None else policy.to_stored(),
        callback_timeout_seconds=command.timeout_seconds,
    )


def build_stored_timer_command(timer: StoredTimer) -> SubmitServiceCall:
    """Return the call of a timer from a timer store."""
    namespace = timer.key.namespace
    command = build_timer_command(
        namespace.tenant_id,
        timer.revision,
        (namespace.name, timer.key.timer_id),
        **list_stored_fields(timer),
    )
    return replace(command, service_call_id=timer.revision)


def list_stored_fields(timer: StoredTimer) -> dict[str, Any]:
    """Return the arguments of `build_timer_command` that made a timer in a timer store."""
    return {
        "execute_at": timer.requested_at,
        "due_at": timer.execute_at,
        "callback_url": timer.callback_url,
        "payload": timer.payload,
        "retry_policy": RetryPolicy.from_stored(timer.retry_policy) if timer.retry_policy else None,
        "timeout_seconds": timer.callback_timeout_seconds,
    }

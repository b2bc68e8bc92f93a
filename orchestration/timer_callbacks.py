"""The service call that carries out a durable timer: a POST to its callback URL, whose response decides what is next.

The stored body is that of the callback, except for `attempt`, which is filled in when an attempt starts
(orchestration.lifecycle).
"""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any

from eventservice.db.now import to_rfc3339
from orchestration.commands import RequestSpec, SubmitServiceCall
from orchestration.retries import RetryPolicy
from orchestration.states import ResponseContract

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

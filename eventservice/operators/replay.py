"""Replays of calls by operators: of one call in the console, of several in the admin."""

from __future__ import annotations

import uuid

from django.http import HttpRequest

from eventservice.kernel.errors import Conflict, Invalid
from eventservice.operators.audit_log import record_action
from orchestration import lifecycle
from orchestration.commands import IDEMPOTENCY_KEY
from orchestration.lifecycle import Submitted
from orchestration.queries.calls import get_call
from orchestration.states import Status


def replay(
    request: HttpRequest, tenant_id: uuid.UUID, service_call_id: uuid.UUID, key: str | None
) -> Submitted:
    """Submit a copy of an ended call, due now, and record it. A key that was used before returns its call."""
    if key is not None and not IDEMPOTENCY_KEY.fullmatch(key):
        raise Invalid("invalid", "The form is damaged. Reload the page and try again.")
    submitted = lifecycle.replay(tenant_id, service_call_id, request.correlation_id, key)  # type: ignore[attr-defined]
    if not submitted.is_repeat:
        _record(request, tenant_id, service_call_id, submitted)
    return submitted


def replay_once(request: HttpRequest, tenant_id: uuid.UUID, service_call_id: uuid.UUID, key: str) -> None:
    """Retry a call that failed, unless it was retried before; replay any other, unless the same form did so before."""
    if get_call(tenant_id, service_call_id).status == Status.FAILED:
        submitted = lifecycle.retry(tenant_id, service_call_id, request.correlation_id)  # type: ignore[attr-defined]
        _record(request, tenant_id, service_call_id, submitted)
    elif replay(request, tenant_id, service_call_id, key).is_repeat:
        raise Conflict("replayed_before", "It has been replayed before.")


def _record(
    request: HttpRequest, tenant_id: uuid.UUID, service_call_id: uuid.UUID, submitted: Submitted
) -> None:
    record_action(
        request.user,
        "submit",
        tenant_id=tenant_id,
        subject=submitted.service_call_id,
        replayOf=str(service_call_id),
    )

"""A call that has ended is made again: by the console's page for one call, by the admin's action for several."""

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
    """A new call, and the note of it; or the call that this key made before."""
    if key is not None and not IDEMPOTENCY_KEY.fullmatch(key):
        raise Invalid("invalid", "The key of this form is damaged: open the page again.")
    made = lifecycle.replay(tenant_id, service_call_id, request.correlation_id, key)  # type: ignore[attr-defined]
    if not made.replayed:
        _note(request, tenant_id, service_call_id, made)
    return made


def replay_once(request: HttpRequest, tenant_id: uuid.UUID, service_call_id: uuid.UUID, key: str) -> None:
    """For many at once: a failed call is not retried a second time, nor any other by the same page."""
    if get_call(tenant_id, service_call_id).status != Status.FAILED:
        if replay(request, tenant_id, service_call_id, key).replayed:
            raise Conflict("replayed_before", "It has been replayed before.")
        return
    made = lifecycle.retry(tenant_id, service_call_id, request.correlation_id)  # type: ignore[attr-defined]
    _note(request, tenant_id, service_call_id, made)


def _note(request: HttpRequest, tenant_id: uuid.UUID, service_call_id: uuid.UUID, made: Submitted) -> None:
    origin = str(service_call_id)
    record_action(request.user, "submit", tenant_id=tenant_id, subject=made.service_call_id, replayOf=origin)

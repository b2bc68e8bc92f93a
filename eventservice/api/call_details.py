"""A service call with all that hangs on it."""

from __future__ import annotations

import uuid
from typing import Any

from eventservice.api.call_presentation import show_attempt, show_call, show_timer
from execution.attempt_log import find_last_attempt
from orchestration.queries.calls import get_call
from timers.schedule import find_timer


def show_details(tenant_id: uuid.UUID, service_call_id: uuid.UUID) -> dict[str, Any]:
    call = get_call(tenant_id, service_call_id)
    attempt = find_last_attempt(tenant_id, service_call_id) if call.attempt else None
    return {
        **show_call(call),
        "timer": show_timer(find_timer(tenant_id, service_call_id)),
        "lastAttempt": attempt and show_attempt(attempt),
    }

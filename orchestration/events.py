"""The events of a service call: facts, without secrets and without full bodies."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum


class EventType(StrEnum):
    SUBMITTED = "ServiceCallSubmitted"
    SCHEDULED = "ServiceCallScheduled"
    DUE_TIME_REACHED = "DueTimeReached"
    RUNNING = "ServiceCallRunning"
    SUCCEEDED = "ServiceCallSucceeded"
    FAILED = "ServiceCallFailed"
    RESCHEDULED = "ServiceCallRescheduled"
    CANCELED = "ServiceCallCanceled"


def instant(moment: datetime) -> str:
    """ISO 8601, UTC, milliseconds: how the outside sees every time."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

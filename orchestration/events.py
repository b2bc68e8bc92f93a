"""The events of a service call: facts, without secrets and without full bodies."""

from __future__ import annotations

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

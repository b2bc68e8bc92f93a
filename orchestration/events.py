"""The types of a service call's events. Their data are facts, without secrets and without bodies."""

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
    DELETED = "ServiceCallDeleted"

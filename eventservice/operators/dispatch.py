"""Pausing and resuming dispatch on behalf of an operator, with an entry in the audit log."""

from __future__ import annotations

from typing import Any

from eventservice.operators.audit_log import run_audited
from timers.pause import pause_dispatch, resume_dispatch

SUBJECT = "dispatch"


def pause(user: Any, reason: str = "") -> bool:
    """Pause dispatch. Return False, and record nothing, if it is paused already."""
    return run_audited(
        user,
        "dispatch-pause",
        lambda: pause_dispatch(user.get_username(), reason),
        subject=SUBJECT,
        changed=bool,
        reason=reason,
    )


def resume(user: Any) -> bool:
    """Resume dispatch. Return False, and record nothing, if it is not paused."""
    return run_audited(user, "dispatch-resume", resume_dispatch, subject=SUBJECT, changed=bool)

"""The finding on a pause of dispatch, and the findings that follow from it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from eventservice.kernel.findings import Finding, Severity
from eventservice.kernel.text import end_sentence
from eventservice.operators.formatting import format_since
from timers.models import DispatchPause

# While dispatch is paused, these only say that things wait.
WAITS_FOR_RESUME = {"stuck_shards", "overdue_calls", "waiting_events", "waiting_for_broker"}


def check_dispatch(pause: DispatchPause | None, now: datetime) -> Finding:
    """Report that dispatch is paused: since when, by whom and why."""
    if pause is None:
        return Finding("dispatch", Severity.OK, "Dispatch is running: what is due is sent.")
    reason = f" {end_sentence(pause.reason)}" if pause.reason else ""
    return Finding(
        "dispatch",
        Severity.WARNING,
        f"Dispatch is paused {format_since(pause.since, now)}, by {pause.paused_by}: calls and events are stored, and "
        f"nothing is sent.{reason}",
        "Resume it on the Cluster page or with `manage.py dispatch resume`. Before, cancel what must not be sent.",
    )


def blame_pause(findings: Iterable[Finding], pause: DispatchPause | None) -> list[Finding]:
    """Return the findings. While dispatch is paused, without those that only say that things wait."""
    return [found for found in findings if found.is_ok or pause is None or found.code not in WAITS_FOR_RESUME]

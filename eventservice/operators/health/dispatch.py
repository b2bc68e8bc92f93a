"""The finding on a pause of dispatch, and the findings that follow from it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from django.conf import settings

from eventservice.kernel.errors import Conflict
from eventservice.kernel.findings import Finding, Severity
from eventservice.kernel.text import end_sentence
from eventservice.operators.formatting import format_since
from timers.models import DispatchPause, Node
from timers.pause import require_complete_move

# While dispatch is paused, these only say that things wait.
WAITS_FOR_RESUME = {"stuck_shards", "overdue_calls", "waiting_events", "waiting_for_broker"}

REMOVE_SETTING = (
    "DISPATCH=paused is still set: remove it from .env, or the next start of a cluster pauses dispatch again."
)


def check_dispatch(pause: DispatchPause | None, nodes: Iterable[Node], now: datetime) -> Finding:
    """Report that dispatch is paused: since when, by whom and why. Or that it will be by the next start.

    While no node is alive, DISPATCH=paused is not reported as forgotten: an operator may be about to start one with it.
    """
    if pause is not None:
        return check_pause(pause, now)
    if settings.DISPATCH != "paused":
        return Finding("dispatch", Severity.OK, "Dispatch is running: what is due is sent.")
    if any(node.is_alive(now) for node in nodes):
        return Finding("dispatch", Severity.WARNING, "Dispatch is running.", REMOVE_SETTING)
    return Finding(
        "dispatch", Severity.OK, "DISPATCH=paused is set: the next start of a cluster pauses dispatch."
    )


def check_pause(pause: DispatchPause, now: datetime) -> Finding:
    """Report a pause: since when, by whom and why."""
    try:
        require_complete_move(pause)
    except Conflict as refusal:
        return Finding("dispatch", Severity.ERROR, "Dispatch is paused.", refusal.message)
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

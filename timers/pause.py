"""The pause of dispatch: while it lasts, calls and events are stored, and no node of this database sends anything.

The row of `dispatch_pauses` is the pause. Nodes read it when they join, and with the list of nodes
(timers.membership), so that nothing is asked for it alone.
"""

from __future__ import annotations

from eventservice.db.now import DbNow
from timers.models import DispatchPause

MAX_REASON_LENGTH = 200


def find_pause() -> DispatchPause | None:
    """Return the pause, or None while dispatch is running."""
    return DispatchPause.objects.first()


def pause_dispatch(by: str, reason: str) -> bool:
    """Pause dispatch. Return False, and change nothing, if it is paused already."""
    defaults = {"since": DbNow(), "paused_by": by, "reason": reason[:MAX_REASON_LENGTH]}
    return DispatchPause.objects.get_or_create(pk=DispatchPause.KEY, defaults=defaults)[1]


def resume_dispatch() -> bool:
    """End the pause. Return False if there is none."""
    return bool(DispatchPause.objects.all().delete()[0])

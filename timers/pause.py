"""The pause of dispatch: while it lasts, calls and events are stored, and no node of this database sends anything.

The row of `dispatch_pauses` is the pause. Nodes read it when they join, and with the list of nodes
(timers.membership), so that nothing is asked for it alone.

`manage.py move_database` marks both of its databases by the reason of a pause.
"""

from __future__ import annotations

import re

from eventservice.db.now import DbNow
from eventservice.kernel.errors import Conflict
from timers.models import DispatchPause

MAX_REASON_LENGTH = 200
# The reasons of the pauses that `manage.py move_database` writes before and after the rows are copied.
MOVING, MOVED = "Moving to {place} (move {id})", "Moved to {place} (move {id})"
MOVE_MARK = re.compile(r"(Moving|Moved) to (.*) \(move ([0-9a-f-]{36})\)")


def find_pause() -> DispatchPause | None:
    """Return the pause, or None while dispatch is running."""
    return DispatchPause.objects.first()


def pause_dispatch(by: str, reason: str) -> bool:
    """Pause dispatch. Return False, and change nothing, if it is paused already."""
    defaults = {"since": DbNow(), "paused_by": by, "reason": reason[:MAX_REASON_LENGTH]}
    return DispatchPause.objects.get_or_create(pk=DispatchPause.KEY, defaults=defaults)[1]


def resume_dispatch() -> bool:
    """End the pause. Return False if there is none. Raise Conflict in a database that lacks rows of its move."""
    require_complete_move(find_pause())
    return bool(DispatchPause.objects.all().delete()[0])


def require_complete_move(pause: DispatchPause | None) -> None:
    """Raise Conflict in the target of a move that was interrupted or canceled: rows are missing, and a process would add others."""
    mark = MOVE_MARK.fullmatch(pause.reason) if pause else None
    if mark and mark[1] == "Moving":
        raise Conflict(
            "move_incomplete",
            "This database is the target of a move from SQLite that has not been completed. Run `manage.py move_database` "
            "again, on the SQLite database (without DATABASE_URL) and with the same --to; it goes on where it was. If you "
            "gave the move up, remove this database and DATABASE_URL.",
        )

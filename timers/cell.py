"""The id of the cell: this deployment with its relational database, as timer stores know it.

Timers in a store are taken in the name of a cell. A database that may have lost commits, such as a restored backup, gets
a new id: it must not act on what it remembers to have taken, because others may have gone on with that since.
"""

from __future__ import annotations

import uuid

from eventservice.db.now import DbNow
from eventservice.kernel.ids import new_id
from timers.models import Cell


def get_cell_id() -> uuid.UUID:
    """Return the id of this cell. The first caller gives it one."""
    cell, _ = Cell.objects.get_or_create(pk=Cell.KEY, defaults={"cell_id": new_id(), "since": DbNow()})
    return cell.cell_id


def renew_cell_id(using: str = "default") -> uuid.UUID:
    """Give the cell a new id. What it has taken in stores is due again when the takes end."""
    cell_id = new_id()
    Cell.objects.using(using).update_or_create(pk=Cell.KEY, defaults={"cell_id": cell_id, "since": DbNow()})
    return cell_id

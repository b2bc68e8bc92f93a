"""A statement waits no longer for a locked table than for a locked row."""

from __future__ import annotations

import pytest
from django.db import OperationalError, connection

from eventservice.runtime.models import Slot
from tests.database_locks import hold_locks
from tests.process_harness import ProcessHarness, harness

__all__ = ["harness"]


@pytest.mark.parametrize("kind", ["rows", "tables"])
def test_a_statement_gives_up_a_lock_that_another_process_keeps(kind: str, harness: ProcessHarness) -> None:
    """The limit for rows does not apply to tables on MariaDB, where the default for those is a day."""
    if connection.vendor == "sqlite" and kind == "tables":
        pytest.skip("SQLite locks the whole file")
    Slot.objects.create(name="a/engine")
    with hold_locks(harness, kind), pytest.raises(OperationalError):
        Slot.objects.update(ticket=1)

"""A statement waits no longer for a locked table than for a locked row."""

from __future__ import annotations

import re

import pytest
from django.db import OperationalError, connection

from eventservice.db.dialects import get_dialect
from eventservice.operators.health import check_writing
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


@pytest.mark.parametrize("kind", ["rows", "tables"])
def test_the_session_that_holds_a_lock_is_named_and_can_be_ended(kind: str, harness: ProcessHarness) -> None:
    if connection.vendor == "sqlite":
        pytest.skip("SQLite's processes are named: test_sqlite_health.py")
    Slot.objects.create(name="a/engine")
    with hold_locks(harness, kind):
        described = get_dialect().describe_lock_holder()
        assert "holds locks since " in described
        command = re.search(r"execute (.*;) in `manage.py dbshell`", described)
        assert command, described
        with connection.cursor() as cursor:
            cursor.execute(command[1])
        Slot.objects.update(ticket=1)
    assert get_dialect().describe_lock_holder() == ""


def test_the_check_of_a_locked_database_names_who_holds_the_lock(harness: ProcessHarness) -> None:
    if connection.vendor == "sqlite":
        tables, holder = [], "The write lock is held by process "
    else:
        tables, holder = ["django_migrations"], "Session "
    with hold_locks(harness, "tables", tables):
        finding = check_writing()
    assert finding.is_locked
    assert finding.remedy.startswith(holder)
    assert holder not in finding.text  # /readyz shows the text to everybody

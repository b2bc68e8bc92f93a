"""The check that writes to the database."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from django.db import DatabaseError, connection, transaction
from django.db.migrations.recorder import MigrationRecorder

from eventservice.db.dialects import get_dialect
from eventservice.db.dialects.base import Cause
from eventservice.db.errors import TROUBLES, Trouble, explain_error
from eventservice.kernel.findings import Finding, Severity
from eventservice.kernel.ids import new_id


@dataclass(frozen=True, slots=True)
class WritingFinding(Finding):
    """Whether the database can be written to, and whether it cannot because another process has locked it or because it has
    no tables yet."""

    is_locked: bool = False
    lacks_tables: bool = False


def check_writing() -> WritingFinding:
    """Write a row and delete it again, durably: a full disk is noticed when a transaction is committed."""
    recorder = MigrationRecorder(connection)
    try:
        if not recorder.has_table():
            text = "The database has no tables yet."
            return WritingFinding(
                "writing", Severity.ERROR, text, "Run `manage.py migrate`.", lacks_tables=True
            )
        with transaction.atomic():
            recorder.migration_qs.create(app="eventservice", name=f"write probe {new_id()}").delete()
    except DatabaseError as error:
        trouble = explain_error(error)
        detail = " ".join(str(error).split())
        return WritingFinding(
            code="writing",
            severity=Severity.ERROR,
            text=f"{trouble.text} ({detail})",
            remedy=describe_remedy(trouble),
            is_locked=trouble == TROUBLES[Cause.LOCKED],
        )
    return WritingFinding("writing", Severity.OK, "wrote a row and deleted it")


def describe_remedy(trouble: Trouble) -> str:
    """Return what operators can do. If the database is locked, it names who holds the lock, as far as that is known.

    The connection must not be in a transaction that has failed.
    """
    if trouble != TROUBLES[Cause.LOCKED]:
        return trouble.remedy
    holder = ""
    with suppress(DatabaseError):  # this user may not see other sessions
        holder = get_dialect().describe_lock_holder()
    return f"{holder or trouble.remedy} docs/waits.md says how to find out who holds a lock."

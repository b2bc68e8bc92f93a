"""Put a backup in the place of the database, with dispatch paused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connection, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.recorder import MigrationRecorder

from eventservice.db.bounded_count import MAX_COUNTED, format_capped
from eventservice.db.dialects.backup import BackupError
from eventservice.db.now import DbNow, db_now
from eventservice.management.database import get_file_backups, name_database
from eventservice.operators.audit_log import CommandLine
from eventservice.operators.models import OperatorAction
from orchestration.lifecycle import abandon_takes
from timers.cell import renew_cell_id
from timers.models import Cell, DispatchPause
from timers.persistence import timer_persistence

COPY = "restored copy"

NEXT_STEPS = """\
Dispatch is paused. What to do next:
  1. Start the web processes and the cluster. Calls are accepted, and nothing is sent.
  2. Cancel what must not be sent again: what was waiting when the backup was made may have been sent since.
  3. Run `manage.py dispatch resume`."""
NO_PAUSE = """\
The backup was made by an older release, which knows no pause. Before you start the cluster:
  1. Run `manage.py migrate` and `manage.py dispatch pause`.
  2. Start the web processes and the cluster, and cancel what must not be sent again.
  3. Run `manage.py dispatch resume`."""


class Command(BaseCommand):
    help = (
        "Put a backup in the place of the SQLite database, which no process may use. The backup is verified, the previous"
        " database is kept, and dispatch is paused. A database server has tools of its own for this (docs/operations.md)."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", type=Path, help="a file that `manage.py backup` has written")

    def handle(self, *args: object, file: Path, **options: object) -> None:
        backups = get_file_backups("restore")
        connection.close()
        try:
            backups.require_unused()
            copy = backups.prepare(file)
            try:
                with _connected(copy) as database:
                    _check_tables(database, file)
                    is_current = _check_migrations(database, file)
                    if Cell._meta.db_table in database.introspection.table_names():
                        renew_cell_id(database.alias)
                    if is_current:
                        abandon_takes(database.alias)
                        _pause(database, file)
                previous = backups.install(copy)
            finally:
                backups.discard(copy)
        except BackupError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"Restored {file} to {name_database()}.")
        if previous is not None:
            self.stdout.write(f"The previous database is kept: {previous}")
        if is_current:
            due = timer_persistence.measure_backlog(db_now(), MAX_COUNTED).overdue
            self.stdout.write(f"Calls that are due, and would be sent at once: {format_capped(due)}.")
        self.stdout.write(NEXT_STEPS if is_current else NO_PAUSE)


@contextmanager
def _connected(copy: Path) -> Iterator[BaseDatabaseWrapper]:
    connections.databases[COPY] = {**connection.settings_dict, "NAME": str(copy)}
    try:
        yield connections[COPY]
    finally:
        connections[COPY].close()
        del connections[COPY]
        del connections.databases[COPY]


def _check_tables(database: BaseDatabaseWrapper, file: Path) -> None:
    if not MigrationRecorder(database).has_table():
        raise CommandError(f"{file} is not a database of this service: it has no tables of it.")


def _check_migrations(database: BaseDatabaseWrapper, file: Path) -> bool:
    """Return whether the backup has the schema of this code. Raise CommandError if it has a newer one."""
    executor = MigrationExecutor(database)
    loader = executor.loader
    unknown = sorted(
        ".".join(key) for key in set(loader.applied_migrations) - set(loader.disk_migrations or ())
    )
    if unknown:
        raise CommandError(
            f"{file} was made by a newer release: this code lacks the migrations {', '.join(unknown)}. Install that"
            " release first."
        )
    return not executor.migration_plan(loader.graph.leaf_nodes())


def _pause(database: BaseDatabaseWrapper, file: Path) -> None:
    """Pause dispatch in the copy, and write the restore to its audit log."""
    user = CommandLine().get_username()
    DispatchPause.objects.using(database.alias).update_or_create(
        pk=DispatchPause.KEY,
        defaults={"since": DbNow(), "paused_by": user, "reason": f"Restored from {file.name}"[:200]},
    )
    OperatorAction.across_tenants.using(database.alias).create(
        at=DbNow(), user=user, action="restore", tenant_id=None, subject=str(file.absolute())[:255], detail={}
    )

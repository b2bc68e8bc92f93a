"""Put a backup in the place of the database, with dispatch paused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connection, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.recorder import MigrationRecorder
from django.db.models import Model

from eventservice.db.bounded_count import MAX_COUNTED, format_capped
from eventservice.db.dialects.backup import BackupError
from eventservice.db.dialects.now_strategy import TimestampStorage
from eventservice.db.now import DbNow, db_now, get_now_strategy
from eventservice.management.database import get_file_backups, name_database
from eventservice.operators.audit_log import CommandLine
from eventservice.operators.models import OperatorAction
from orchestration.lifecycle import abandon_takes
from orchestration.models import ServiceCall
from timers.cell import renew_cell_id
from timers.models import Cell, DispatchPause
from timers.pause import MAX_REASON_LENGTH
from timers.persistence import timer_persistence

COPY = "restored copy"

# The columns that the table had first. A backup of an older release may lack others, which the ORM would name. Those that
# are added later may be left out of an INSERT, because upgrades demand it (docs/decisions/0037).
PAUSE_COLUMNS = {"id", "since", "paused_by", "reason"}

NEXT_STEPS = """\
Dispatch is paused. What to do next:
  1. Start the web processes and the cluster. Calls are accepted, and nothing is sent.
  2. Cancel what must not be sent again: what was waiting when the backup was made may have been sent since.
  3. Run `manage.py dispatch resume`."""
MIGRATE_FIRST = "The backup was made by an older release. Before anything else, run `manage.py migrate`."
NO_PAUSE = """\
The backup was made by an older release, which has no pause of dispatch. Before you start the cluster:
  1. Run `manage.py migrate`, then `manage.py dispatch pause`.
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
                    if _has_columns(database, ServiceCall, {"start_before"}):
                        abandon_takes(database.alias)
                    is_paused = _pause(database, file)
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
        elif is_paused:
            self.stdout.write(MIGRATE_FIRST)
        self.stdout.write(NEXT_STEPS if is_paused else NO_PAUSE)


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


def _pause(database: BaseDatabaseWrapper, file: Path) -> bool:
    """Pause dispatch in the copy, and write the restore to its audit log. Return False if the release had no pause."""
    user = CommandLine().get_username()
    if _has_columns(
        database, OperatorAction, {str(field.column) for field in OperatorAction._meta.concrete_fields}
    ):
        OperatorAction.across_tenants.using(database.alias).create(
            at=DbNow(),
            user=user,
            action="restore",
            tenant_id=None,
            subject=str(file.absolute())[:255],
            detail={},
        )
    if not _has_columns(database, DispatchPause, PAUSE_COLUMNS):
        return False
    now, values = get_now_strategy(database).render_now(database, timedelta(), TimestampStorage.ISO_TEXT)
    with database.cursor() as cursor:
        cursor.execute("DELETE FROM dispatch_pauses")
        cursor.execute(
            f"INSERT INTO dispatch_pauses (id, since, paused_by, reason) VALUES (%s, {now}, %s, %s)",
            [DispatchPause.KEY, *values, user, f"Restored from {file.name}"[:MAX_REASON_LENGTH]],
        )
    return True


def _has_columns(database: BaseDatabaseWrapper, model: type[Model], columns: set[str]) -> bool:
    """Return whether the table, as it is in the copy, has these columns. A table that does not exist has none."""
    table = model._meta.db_table
    with database.cursor() as cursor:
        if table not in database.introspection.table_names(cursor):
            return False
        return columns <= {
            column.name for column in database.introspection.get_table_description(cursor, table)
        }

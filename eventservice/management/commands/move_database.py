"""Move everything from SQLite to a database server.

Two marks keep the databases from being used meanwhile. The source is retired: the service refuses to connect to it
(`FileBackups.set_retired`). Both have a pause of dispatch whose reason names the move, by which an interrupted move finds
out how far it was and that the target belongs to it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError, connection, connections, transaction
from django.db.migrations.executor import MigrationExecutor

from eventservice.db.configuration import BY_ENGINE, describe_place, parse_database_url
from eventservice.db.dialects import get_dialect
from eventservice.db.dialects.backup import BackupError, FileBackups
from eventservice.db.now import DbNow
from eventservice.kernel.faults import trigger_fault
from eventservice.kernel.ids import new_id
from eventservice.management.database import name_database
from eventservice.management.moving import (
    SOURCE,
    TARGET,
    MoveError,
    continue_sequence,
    copy_table,
    delete_rows_of_migrations,
    find_filled_tables,
    find_foreign_tables,
    gather_statistics,
    list_models,
    verify_table,
)
from eventservice.operators.audit_log import CommandLine
from eventservice.operators.models import OperatorAction
from timers.models import DispatchPause
from timers.pause import MOVE_MARK, MOVED, MOVING

MAX_NAMED_TABLES = 5
MAX_PLACE_LENGTH = 100
STATEMENT_SECONDS = 24 * 3600
ARRIVED = "Moved from SQLite (move {id}). Check it, then resume dispatch."

NEXT_STEPS = """\
Dispatch is paused. What to do next:
  1. Set DATABASE_URL to the new database, in .env and wherever else it is set.
  2. Run `manage.py doctor`, and start the web processes and the cluster. Calls are accepted, and nothing is sent.
  3. Run `manage.py dispatch resume`.
The SQLite database is complete, and retired: the service refuses it."""


class Command(BaseCommand):
    help = (
        "Move everything from the SQLite database to an empty database on PostgreSQL, MariaDB or MySQL. Stop all processes"
        " of the service first. If the command is interrupted, run it again: it goes on where it was."
    )
    # The default database is the source, which is locked.
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        which = parser.add_mutually_exclusive_group(required=True)
        which.add_argument("--to", metavar="URL", help="the new database, as in DATABASE_URL")
        which.add_argument(
            "--cancel",
            action="store_true",
            help="give up a move that has not been completed: the service may use the SQLite database again",
        )

    def handle(self, *args: object, to: str | None, cancel: bool, **options: object) -> None:
        files = get_dialect().file_backups
        if files is None:
            raise CommandError(f"`manage.py move_database` moves from SQLite, and this is {name_database()}.")
        try:
            with _connect_source(files):
                if to is None:
                    self._cancel(files)
                else:
                    self._move(files, to)
        except (BackupError, MoveError) as error:
            raise CommandError(str(error)) from error

    def _cancel(self, files: FileBackups) -> None:
        mark = _find_mark(SOURCE)
        if not files.is_retired(connections[SOURCE]) or mark is None or mark[1] != "Moving":
            raise CommandError(f"{name_database()} is not being moved.")
        _write_pause(SOURCE, f"The move to {mark[2]} was canceled.")
        files.set_retired(connections[SOURCE], False)
        self.stdout.write(
            f"The service may use {name_database()} again. Dispatch is paused: run `manage.py dispatch resume`. Delete"
            f" what is in {mark[2]}."
        )

    def _move(self, files: FileBackups, url: str) -> None:
        with _connect_target(url) as place:
            move_id = self._begin(files, url, place)
            if self._is_complete(move_id):
                self._report(f"{name_database()} has been moved to {place} already.")
                return
            for model in list_models():
                self._report(f"copying {model._meta.db_table}")
                copy_table(model, lambda rows: None)
            for model in list_models():
                found = verify_table(model)
                continue_sequence(model)
                self._report(
                    f"verified {model._meta.db_table}: {found.rows:,} rows, checksum {found.checksum}"
                )
            gather_statistics()
            _write_pause(SOURCE, MOVED.format(place=place, id=move_id))
            trigger_fault("move.finished")
            self._complete(move_id)
            self._report(f"Moved {name_database()} to {connections[TARGET].display_name} {place}.")
            self._report(NEXT_STEPS)

    def _is_complete(self, move_id: str) -> bool:
        """Return whether the move has been completed. If only its last step was interrupted, take that."""
        mark = _find_mark(SOURCE)
        if mark is None or mark[1] != "Moved":
            return False
        if _has_target_mark(move_id):
            self._complete(move_id)
        return True

    def _complete(self, move_id: str) -> None:
        _write_pause(TARGET, ARRIVED.format(id=move_id))

    def _report(self, text: str) -> None:
        self.stdout.write(text)
        self.stdout.flush()

    def _begin(self, files: FileBackups, url: str, place: str) -> str:
        """Mark both databases, or recognize the marks of the move that was interrupted. Return its id."""
        is_begun = files.is_retired(connections[SOURCE])
        mark = _find_mark(SOURCE) if is_begun else None
        if not is_begun:
            _require_current_schema()
            _require_empty_target(place)
            _migrate_target(url)
            move_id = str(new_id())
            with transaction.atomic(using=SOURCE):
                _write_pause(SOURCE, MOVING.format(place=place, id=move_id))
                _record_move(place)
            files.set_retired(connections[SOURCE], True)
            trigger_fault("move.source_marked")
        elif mark is None:
            raise MoveError(
                f"{name_database()} was replaced by a backup: move the database that is in use (DB_PATH)."
            )
        elif mark[2] != place:
            raise MoveError(
                f"{name_database()} is being moved to {mark[2]}, and not to {place}. Go on with that, or give it up with"
                " --cancel."
            )
        else:
            move_id = mark[3]
        if _has_target_mark(move_id) or (mark is not None and mark[1] == "Moved"):
            return move_id
        _require_empty_target(place)
        _migrate_target(url)
        with transaction.atomic(using=TARGET):
            delete_rows_of_migrations()
            _write_pause(TARGET, MOVING.format(place=place, id=move_id))
        trigger_fault("move.target_marked")
        return move_id


# --- connections ----------------------------------------------------------------------------------------------


@contextmanager
def _connect_source(files: FileBackups) -> Iterator[None]:
    """Connect to the SQLite database, which no other process may use, under another alias."""
    if not Path(connection.settings_dict["NAME"]).exists():
        raise CommandError(f"There is no database {connection.settings_dict['NAME']}.")
    connection.close()
    with _alias(SOURCE, connection.settings_dict):
        files.lock(connections[SOURCE])
        yield


@contextmanager
def _connect_target(url: str) -> Iterator[str]:
    """Connect to the new database. Yield its name and server."""
    try:
        entry: Any = parse_database_url(url)
    except ValueError as wrong:
        raise CommandError(f"--to {wrong}") from None
    if entry["ENGINE"] == connection.settings_dict["ENGINE"]:
        raise CommandError("--to must be a database on PostgreSQL, MariaDB or MySQL.")
    BY_ENGINE[entry["ENGINE"]].configure(
        entry, replace(settings.DATABASE_WAITS, statement_seconds=STATEMENT_SECONDS)
    )
    with _alias(TARGET, connections.configure_settings({"default": {}, TARGET: entry})[TARGET]):
        try:
            connections[TARGET].ensure_connection()
        except DatabaseError as error:
            reason = " ".join(str(error).split())
            raise CommandError(f"--to: the database cannot be reached: {reason}") from error
        yield describe_place(connections[TARGET])[:MAX_PLACE_LENGTH]


@contextmanager
def _alias(name: str, entry: Any) -> Iterator[None]:
    connections.databases[name] = dict(entry)
    try:
        yield
    finally:
        connections[name].close()
        del connections[name]
        del connections.databases[name]


# --- what a move requires -------------------------------------------------------------------------------------


def _require_current_schema() -> None:
    executor = MigrationExecutor(connections[SOURCE])
    if executor.migration_plan(executor.loader.graph.leaf_nodes()):
        raise MoveError(f"{name_database()} lacks migrations of this code. Run `manage.py migrate` first.")


def _require_empty_target(place: str) -> None:
    if tables := find_foreign_tables():
        raise MoveError(
            f"{place} has tables of something else: {_name_tables(tables)}. Create an empty database."
        )
    if tables := find_filled_tables():
        raise MoveError(f"{place} has other data, in {_name_tables(tables)}. Create an empty database.")


def _name_tables(tables: list[str]) -> str:
    more = f" and {len(tables) - MAX_NAMED_TABLES} more" if len(tables) > MAX_NAMED_TABLES else ""
    return ", ".join(tables[:MAX_NAMED_TABLES]) + more


def _migrate_target(url: str) -> None:
    """Create the tables, in a process whose default database is the target: migrations use that."""
    command = [sys.executable, "manage.py", "migrate", "--no-input", "--verbosity", "0"]
    environment = {**os.environ, "DATABASE_URL": url}
    done = subprocess.run(
        command, cwd=settings.BASE_DIR, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise MoveError(f"The tables cannot be created: {done.stderr.strip()}")


# --- marks ----------------------------------------------------------------------------------------------------


def _find_mark(alias: str) -> re.Match[str] | None:
    """Return the mark of a move: its state, the place that it goes to, and its id."""
    pause = DispatchPause.objects.using(alias).first()
    return MOVE_MARK.fullmatch(pause.reason) if pause else None


def _has_target_mark(move_id: str) -> bool:
    if DispatchPause._meta.db_table not in connections[TARGET].introspection.table_names():
        return False
    pause = DispatchPause.objects.using(TARGET).first()
    return pause is not None and f"(move {UUID(move_id)})" in pause.reason


def _write_pause(alias: str, reason: str) -> None:
    DispatchPause.objects.using(alias).update_or_create(
        pk=DispatchPause.KEY,
        defaults={"since": DbNow(), "paused_by": CommandLine().get_username(), "reason": reason},
    )


def _record_move(place: str) -> None:
    OperatorAction.across_tenants.using(SOURCE).create(
        at=DbNow(), user=CommandLine().get_username(), action="move-database", subject=place, detail={}
    )

"""Sentences of commands about the database: which one they used, and what is wrong with it."""

from __future__ import annotations

from django.conf import settings
from django.core.management.base import CommandError
from django.db import DatabaseError, InterfaceError, connection
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.recorder import MigrationRecorder

from eventservice.db.configuration import describe_place
from eventservice.db.dialects import get_dialect
from eventservice.db.dialects.backup import FileBackups
from eventservice.db.dialects.base import Cause
from eventservice.db.errors import TROUBLES, find_trouble
from eventservice.kernel.env import get_env_path


def name_database() -> str:
    """Return which database this command uses."""
    return f"{connection.display_name} {describe_place(connection)}"


def get_file_backups(command: str) -> FileBackups:
    """Return the backups of a database that is a file. Raise CommandError for a server, whose own tools make them."""
    dialect = get_dialect()
    if dialect.file_backups is None:
        raise CommandError(
            f"`manage.py {command}` is for SQLite. For {name_database()}, use {dialect.backup_tools}: see “Back up and"
            " restore” in docs/operations.md."
        )
    return dialect.file_backups


def explain_database_error(error: Exception, command: str = "") -> str | None:
    """Return one line that says what is wrong with the database, or None if the statement is likely at fault.

    `command` is the one that has failed.
    """
    trouble = find_trouble(error)
    reason = " ".join(str(error).split())
    if trouble and trouble is not TROUBLES[Cause.MIGRATION_MISSING]:
        return f"{trouble.text} {trouble.remedy} ({name_database()}: {reason})"
    try:
        if not MigrationRecorder(connection).has_table():
            return _format_no_tables()
        executor = MigrationExecutor(connection)
        missing = len(executor.migration_plan(executor.loader.graph.leaf_nodes()))
    except (DatabaseError, InterfaceError):
        return None
    if not missing:
        return None
    if command == "migrate":
        left = f"{missing} migrations are left. When the reason is gone, run the command again."
        return f"{name_database()}: {reason.rstrip('.')}. {left}"
    return f"{name_database()} lacks {missing} migrations of this code. Run `manage.py migrate`."


def require_tables() -> None:
    """Raise CommandError if the database has no tables or does not exist. One that is unavailable may have some."""
    try:
        if not MigrationRecorder(connection).has_table():
            raise CommandError(_format_no_tables())
    except (DatabaseError, InterfaceError) as error:
        if find_trouble(error) is TROUBLES[Cause.NO_FILE]:
            raise CommandError(explain_database_error(error)) from None
    finally:
        connection.close()


def _format_no_tables() -> str:
    return (
        f"{name_database()} has no tables. If it is the right database, run `manage.py migrate`. To use another one, set"
        f" DATABASE_URL or DB_PATH in the environment or in {get_env_path(settings.BASE_DIR)}."
    )

"""New connections: to a server of the right kind, with its limits, and without waiting for a silent one for ever."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Dialect

from timers.stores.sql.databases import ANSWER_SECONDS, SqlDatabase


class WrongServer(Exception):
    """The server is not of the kind that the URL says, whose table would be another."""


def connect(dialect: Dialect, record: object, arguments: Sequence[Any], options: dict[str, Any]) -> Any:
    """Open a connection for SQLAlchemy. Return None where its own is bounded by its options already."""
    if dialect.name == "postgresql":
        # Not installed where no store is on PostgreSQL.
        from eventservice.db.silence import SilenceLimitedConnection

        connection = SilenceLimitedConnection.connect(*arguments, **options)
        connection.answer_seconds = ANSWER_SECONDS
        return connection
    return None


def begin_session(database: SqlDatabase, connection: Any, record: object) -> None:
    """Set the limits of a new session. Raise WrongServer for a database that only speaks the same protocol."""
    cursor = connection.cursor()
    cursor.execute(database.version_query)
    version = str(cursor.fetchone()[0])
    if not database.is_own_version(version):
        raise WrongServer(f"{database.scheme}:// needs {database.name}, but the server is {version}")
    if database.session:
        cursor.execute(database.session)
    cursor.close()
    # The driver has begun a transaction, in which SQLAlchemy could not switch to one for each statement.
    connection.rollback()

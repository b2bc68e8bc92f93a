"""DATABASE_URL, and the settings of the database that it names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast
from urllib.parse import SplitResult, urlsplit

from eventservice.db.dialects.configuration import (
    ENCODING,
    DatabaseConfiguration,
    DatabaseSettings,
    Waits,
)
from eventservice.db.dialects.mariadb.configuration import MariaDBConfiguration
from eventservice.db.dialects.mysql.configuration import MySQLConfiguration
from eventservice.db.dialects.postgresql.configuration import PostgreSQLConfiguration
from eventservice.db.dialects.sqlite.configuration import SQLiteConfiguration
from eventservice.kernel.env import Environment

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

SQLITE = SQLiteConfiguration()
DATABASES: tuple[DatabaseConfiguration, ...] = (
    SQLITE,
    PostgreSQLConfiguration(),
    MariaDBConfiguration(),
    MySQLConfiguration(),
)
MEMORY = ":memory:"
BY_SCHEME = {scheme: database for database in DATABASES for scheme in database.schemes}
BY_ENGINE = {database.engine: database for database in DATABASES}


def read_database(env: Environment, base: Path, waits: Waits) -> DatabaseSettings:
    """Return the entry of Django's DATABASES for DATABASE_URL, or else for the SQLite file at DB_PATH.

    A relative path is one in the folder `base`.
    """
    url = env.string("DATABASE_URL", max_length=None)
    path = Path(env.string("DB_PATH", "data/event_service.db")).expanduser()
    try:
        entry = parse_database_url(url) if url else SQLITE.at(str(path))
    except ValueError as wrong:
        # The URL may hold a password: the message says what is wrong with it and does not quote it.
        env.report(f"DATABASE_URL {wrong}")
        entry = SQLITE.at(MEMORY)
    if entry["ENGINE"] == SQLITE.engine and entry["NAME"] != MEMORY:
        # Not the folder in which a command is started, which would give it a database of its own.
        entry["NAME"] = str(base / entry["NAME"])
    BY_ENGINE[entry["ENGINE"]].configure(entry, waits)
    return entry


def get_default_poll_seconds(database: DatabaseSettings) -> float:
    """Return how often an engine looks for due timers of this database while nothing tells it of new ones."""
    return BY_ENGINE[database["ENGINE"]].poll_seconds


def describe_place(connection: BaseDatabaseWrapper) -> str:
    """Return the file of a database, or its name and server, without user and password."""
    place = connection.settings_dict
    return f"{place['NAME']} at {place['HOST']}:{place['PORT']}" if place["HOST"] else str(place["NAME"])


@contextmanager
def without_statement_limit(connection: BaseDatabaseWrapper, waits: Waits) -> Iterator[None]:
    """Allow each statement of a connection a day, instead of what `waits` says: a change of the schema may take long."""
    database = cast(DatabaseSettings, connection.settings_dict)
    usual = {**database["OPTIONS"]}
    connection.close()
    BY_ENGINE[database["ENGINE"]].configure(database, replace(waits, statement_seconds=24 * 3600))
    try:
        yield
    finally:
        connection.close()
        database["OPTIONS"] = usual


def parse_database_url(url: str) -> DatabaseSettings:
    """Return the database that a URL names as an entry of DATABASES. Raise ValueError without quoting the URL."""
    parts = _split(url)
    database = BY_SCHEME.get(parts.scheme)
    if database is None:
        raise ValueError(f"has the scheme {parts.scheme!r}: expected one of {', '.join(BY_SCHEME)}")
    return database.parse_url(parts)


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises ValueError for an invalid port
    except ValueError:
        # Its message quotes what it could not read, and that may be the password.
        raise ValueError(f"cannot be read: {ENCODING}") from None
    if parts.fragment:
        raise ValueError("has a # that is not %-encoded: write it as %23")
    return parts

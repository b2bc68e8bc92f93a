"""SQLite in DATABASE_URL and DATABASES."""

from __future__ import annotations

from urllib.parse import SplitResult, unquote

from eventservice.db.dialects.configuration import DatabaseConfiguration, DatabaseSettings, Waits

ENGINE = "eventservice.db.dialects.sqlite"


class SQLiteConfiguration(DatabaseConfiguration):
    """A file. It has timeouts of its own (see base.py)."""

    engine = ENGINE
    schemes = ("sqlite",)
    poll_seconds = 1.0  # commits are noticed: see change_watch.py

    def parse_url(self, url: SplitResult) -> DatabaseSettings:
        # sqlite:///relative/path and sqlite:////absolute/path, as everywhere. `read_database` makes the former absolute.
        path = unquote(url.path)
        if not path.strip("/"):
            raise ValueError("names no file: expected sqlite:///path/to/file.db")
        return self.at(path[1:])

    def at(self, path: str) -> DatabaseSettings:
        """Return the entry of DATABASES for a file."""
        return {"ENGINE": self.engine, "NAME": path}

    def configure(self, database: DatabaseSettings, waits: Waits) -> None:
        database |= {"CONN_MAX_AGE": None, "CONN_HEALTH_CHECKS": False}

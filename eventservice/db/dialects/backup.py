"""The interface of backups that the service makes itself, where the database is a file (`Dialect.file_backups`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper


class BackupError(Exception):
    """Raised if a backup cannot be made or restored. Nothing was changed. The text says why, and what to do."""


class FileBackups(ABC):
    """Copies of the default database, and how one takes its place."""

    @abstractmethod
    def back_up(self, target: Path) -> None:
        """Write a verified copy of the database, which may be in use, to a new file that only this user can read."""

    @abstractmethod
    def require_unused(self) -> None:
        """Raise BackupError if another process uses the database. It may not exist, or be damaged."""

    @abstractmethod
    def prepare(self, source: Path) -> Path:
        """Return a verified copy of a backup, beside the database. The caller may change it, and discards it."""

    @abstractmethod
    def install(self, copy: Path) -> Path | None:
        """Put a copy in the place of the database, which no process may use. It is verified once more.

        Return the file to which the previous database was moved, or None if there was none.
        """

    @abstractmethod
    def lock(self, database: BaseDatabaseWrapper) -> None:
        """Let no other process use the database until this connection is closed. Raise BackupError if one does."""

    @abstractmethod
    def set_retired(self, database: BaseDatabaseWrapper, retired: bool) -> None:
        """Make the service refuse this database, which is locked, or accept it again."""

    @abstractmethod
    def is_retired(self, database: BaseDatabaseWrapper) -> bool:
        """Return whether the service refuses this database."""

    @abstractmethod
    def read_sequence(self, database: BaseDatabaseWrapper, table: str) -> int:
        """Return the last number that the database has given to a row of a table, or 0."""

    @abstractmethod
    def discard(self, copy: Path) -> None:
        """Delete what is left of a copy."""

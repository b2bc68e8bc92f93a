"""Copying an SQLite database that is in use, and putting a copy in its place.

SQLite's backup API copies one snapshot in one step while others write. The copy has a temporary name until it is
complete, verified and on disk.

A database that has been replaced, or moved to a server, is *retired*: a mark in its header makes the service refuse to
connect to it (base.py). So no process writes to it by mistake, not even one that had opened the file before.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from django.db import connection

from eventservice.db.dialects.backup import BackupError, FileBackups
from eventservice.db.dialects.sqlite.processes import describe_process, list_users

# The application id of a retired database, "ESRT" in ASCII. A database in use has none.
RETIRED = 0x45535254
# How long the lock of a process that is just ending is waited for.
LOCK_SECONDS = 2.0
MAX_REPORTED = 5
# Result codes: busy and locked; malformed and no database.
BUSY, DAMAGED = (5, 6), (11, 26)
COMPANIONS = ("-wal", "-shm", "-journal")


class SQLiteBackups(FileBackups):
    @property
    def _file(self) -> Path:
        return Path(connection.settings_dict["NAME"]).absolute()

    def back_up(self, target: Path) -> None:
        if not self._file.exists():
            raise BackupError(f"There is no database {self._file}.")
        with _temporary_file(target) as temporary:
            _copy(self._file, temporary)
            _verify(temporary)
            _sync(temporary)
            try:
                os.link(temporary, target)
            except FileExistsError:
                raise BackupError(f"{target} exists. Choose a name that is not in use.") from None
        _sync(target.absolute().parent)

    def require_unused(self) -> None:
        if self._file.exists():
            with _lock(self._file):
                pass

    def prepare(self, source: Path) -> Path:
        if not source.is_file():
            raise BackupError(f"There is no file {source}.")
        if self._file.exists() and source.samefile(self._file):
            raise BackupError(f"{source} is the database itself.")
        with suppress(OSError):  # otherwise the copy cannot be created, which says why
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        copy = self._file.with_name(f".{self._file.name}.{os.getpid()}.restoring")
        _create(copy)
        try:
            _copy(source, copy)
            _verify(copy)
            with closing(_open(copy)) as raw:
                raw.execute("PRAGMA application_id = 0")
        except BaseException:
            self.discard(copy)
            raise
        return copy

    def install(self, copy: Path) -> Path | None:
        _verify(copy)
        with closing(_open(copy)) as raw:
            # As in use: otherwise the first process would change the mode by a journal beside the file.
            raw.execute("PRAGMA journal_mode = WAL")
            (stamp,) = raw.execute("SELECT strftime('%Y%m%dT%H%M%SZ', 'now')").fetchone()
        _sync(copy)
        aside = self._file.with_name(f"{self._file.name}.before-restore-{stamp}")
        if not self._file.exists():
            _move_companions(self._file, aside)
            self._replace(copy)
            return None
        with _lock(self._file) as raw:
            # A second name first: at no time is there no database.
            os.link(self._file, aside)
            if raw is None:
                _move_companions(self._file, aside)
            else:
                raw.execute(
                    f"PRAGMA application_id = {RETIRED}"
                )  # what was in its log is in the file since it is locked
            self._replace(copy)
        return aside

    def _replace(self, copy: Path) -> None:
        copy.replace(self._file)
        _sync(self._file.parent)

    def discard(self, copy: Path) -> None:
        _delete(copy)

    def lock(self, database: Any) -> None:
        database.ensure_connection()
        try:
            _lock_exclusively(database.connection)
        except database.Database.DatabaseError as error:
            file = Path(database.settings_dict["NAME"])
            raise BackupError(_describe_use(file, list_users(file))) from error

    def set_retired(self, database: Any, retired: bool) -> None:
        database.ensure_connection()
        database.connection.execute(f"PRAGMA application_id = {RETIRED if retired else 0}")

    def is_retired(self, database: Any) -> bool:
        database.ensure_connection()
        return is_retired(database.connection)

    def read_sequence(self, database: Any, table: str) -> int:
        database.ensure_connection()
        found = database.connection.execute(
            "SELECT seq FROM sqlite_sequence WHERE name = ?", [table]
        ).fetchone()
        return int(found[0] or 0) if found else 0


def is_retired(raw: Any) -> bool:
    """Return whether a database is retired, given a connection of the library."""
    return bool(raw.execute("PRAGMA application_id").fetchone()[0] == RETIRED)


def _lock_exclusively(raw: Any) -> None:
    """Let no other process use the database until this connection is closed. Raise an error if one does.

    Every connection in WAL mode holds a lock that keeps others from leaving this mode, also when it is idle.
    """
    raw.execute("PRAGMA locking_mode = EXCLUSIVE")
    raw.execute("PRAGMA journal_mode = DELETE").fetchone()
    raw.execute("BEGIN EXCLUSIVE")
    raw.execute("COMMIT")


@contextmanager
def _lock(file: Path) -> Iterator[Any]:
    """Lock the database, and yield the connection that holds the lock, or None if the file is damaged.

    Raise BackupError if a process uses it.
    """
    library: Any = connection.Database  # type: ignore[attr-defined]
    try:
        raw = _open(file)
    except library.DatabaseError as error:
        raise BackupError(f"{file} cannot be opened: {error}.") from error
    with closing(raw):
        try:
            _lock_exclusively(raw)
            is_damaged = False
        except library.DatabaseError as error:
            users = list_users(file)
            if users or _get_code(error) in BUSY:
                raise BackupError(_describe_use(file, users)) from error
            if _get_code(error) not in DAMAGED:
                raise BackupError(f"{file} cannot be locked: {error}.") from error
            is_damaged = True
        yield None if is_damaged else raw


def _get_code(error: Exception) -> int:
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def _describe_use(file: Path, users: list[int]) -> str:
    """Say that a database is in use, and by which processes, as far as they are known."""
    who = ", ".join(describe_process(process) for process in users[:MAX_REPORTED]) or "another process"
    more = f" and {len(users) - MAX_REPORTED} more" if len(users) > MAX_REPORTED else ""
    return f"{file} is in use by {who}{more}. Stop all processes of the service, and try again."


def _open(file: Path, mode: str = "rw") -> Any:
    """Return a connection that commits each statement by itself."""
    library: Any = connection.Database  # type: ignore[attr-defined]
    return library.connect(
        f"file:{quote(str(file))}?mode={mode}", uri=True, timeout=LOCK_SECONDS, isolation_level=None
    )


def _copy(source: Path, target: Path) -> None:
    library: Any = connection.Database  # type: ignore[attr-defined]
    try:
        with closing(_open(source)) as origin, closing(_open(target)) as copy:
            # All pages in one step. In several, it would start over whenever another process has written.
            origin.backup(copy)
            # A single file: the mode of the copy is that of the original.
            copy.execute("PRAGMA journal_mode = DELETE")
    except library.DatabaseError as error:
        raise BackupError(f"{source} cannot be copied: {error}.") from error


def _verify(file: Path) -> None:
    """Raise BackupError if SQLite finds the file damaged, or a row that refers to none."""
    library: Any = connection.Database  # type: ignore[attr-defined]
    try:
        with closing(_open(file)) as raw:
            problems = [text for (text,) in raw.execute(f"PRAGMA integrity_check({MAX_REPORTED})")]
            dangling = raw.execute("PRAGMA foreign_key_check").fetchmany(MAX_REPORTED)
    except library.DatabaseError as error:
        raise BackupError(f"The copy is damaged: {error}.") from error
    if problems != ["ok"]:
        raise BackupError(f"The copy is damaged: {'; '.join(problems)}.")
    if dangling:
        rows = ", ".join(f"{table} (row {row}) → {parent}" for table, row, parent, _ in dangling)
        raise BackupError(f"The copy has rows that refer to missing rows: {rows}.")


@contextmanager
def _temporary_file(target: Path) -> Iterator[Path]:
    """Create an empty file beside the target, and delete it at the end."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}.partial")
    _create(temporary)
    try:
        yield temporary
    finally:
        _delete(temporary)


def _create(file: Path) -> None:
    """Create a file that only this user can read."""
    try:
        os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except OSError as error:
        raise BackupError(f"No file can be created in {file.parent}: {error.strerror}.") from error


def _delete(file: Path) -> None:
    for suffix in ("", *COMPANIONS):
        Path(f"{file}{suffix}").unlink(missing_ok=True)


def _move_companions(file: Path, aside: Path) -> None:
    """Move the write-ahead log aside with its database: SQLite would apply it to the next one of this name."""
    for suffix in COMPANIONS:
        with suppress(FileNotFoundError):
            Path(f"{file}{suffix}").replace(f"{aside}{suffix}")


def _sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

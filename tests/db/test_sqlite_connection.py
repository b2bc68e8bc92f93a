"""The strict SQLite backend sets up its connections and begins its transactions IMMEDIATE."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.utils import OperationalError

from eventservice.db.dialects import get_dialect
from eventservice.db.dialects.base import Cause
from eventservice.db.dialects.sqlite.base import DatabaseWrapper
from eventservice.db.dialects.sqlite.health import check_database_files
from eventservice.db.dialects.sqlite.library import FIXED
from eventservice.db.errors import TROUBLES, find_trouble
from eventservice.kernel.findings import Severity
from tests.factories import TenantFactory

pytestmark = [pytest.mark.sqlite_only, pytest.mark.django_db(transaction=True)]

OFF, NORMAL, FULL = range(3)


def get_library() -> Any:
    return connection.Database  # type: ignore[attr-defined]


def read_pragma(name: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(f"PRAGMA {name}")
        return cursor.fetchone()[0]


@contextmanager
def connect(file: Path) -> Iterator[Any]:
    """Open the database in another file, as a process does that is configured with it."""
    opened = DatabaseWrapper({**connection.settings_dict, "NAME": str(file)}, "another")
    opened.inc_thread_sharing()
    try:
        yield opened
    finally:
        opened.close()


@pytest.fixture
def another() -> Iterator[Any]:
    """Return a connection that is not Django's and does not wait for locks."""
    opened = get_library().connect(
        connection.settings_dict["NAME"], timeout=0, isolation_level=None, check_same_thread=False
    )
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("journal_mode", "wal"),
        ("foreign_keys", 1),
        ("synchronous", FULL),
        ("busy_timeout", 5000),
        ("temp_store", 2),
    ],
)
def test_a_connection_is_set_up_with_the_pragma(name: str, value: Any) -> None:
    connection.close()
    assert read_pragma(name) == value


def test_a_process_with_relaxed_durability_syncs_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(get_dialect(), "synchronous", "FULL")
    get_dialect().relax_durability()
    connection.close()
    try:
        assert read_pragma("synchronous") == NORMAL
    finally:
        monkeypatch.undo()
        connection.close()
    assert read_pragma("synchronous") == FULL


def test_a_transaction_has_the_write_lock_from_the_beginning(another: Any) -> None:
    with transaction.atomic():
        with pytest.raises(get_library().OperationalError, match="locked"):
            another.execute("BEGIN IMMEDIATE")
        # Readers do not wait for it.
        assert another.execute("SELECT count(*) FROM tenants").fetchone() == (0,)
    another.execute("BEGIN IMMEDIATE")
    another.execute("ROLLBACK")


def test_a_transaction_waits_for_another_writer_at_its_beginning(another: Any) -> None:
    another.execute("BEGIN IMMEDIATE")
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA busy_timeout = 50")
    begun = time.monotonic()
    try:
        with pytest.raises(OperationalError, match="locked"), transaction.atomic():
            pytest.fail("the transaction began")
    finally:
        connection.close()
        another.execute("ROLLBACK")
    assert time.monotonic() - begun >= 0.05


def test_a_reader_sees_only_what_is_committed(another: Any) -> None:
    with transaction.atomic():
        TenantFactory()
        assert another.execute("SELECT count(*) FROM tenants").fetchone() == (0,)
    assert another.execute("SELECT count(*) FROM tenants").fetchone() == (1,)


def test_a_new_database_can_be_read_by_its_user_only(tmp_path: Path) -> None:
    file = tmp_path / "parent" / "data" / "new.db"
    usual = os.umask(0o022)
    try:
        with connect(file) as opened:
            opened.dialect.create_database(opened)
            opened.cursor().execute("CREATE TABLE things (id integer) STRICT")
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in file.parent.iterdir()}
    finally:
        os.umask(usual)
    assert modes == dict.fromkeys(["new.db", "new.db-wal", "new.db-shm"], 0o600)
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_a_connection_creates_no_file(tmp_path: Path) -> None:
    for file in (tmp_path / "new.db", tmp_path / "parent" / "new.db"):
        with connect(file) as opened, pytest.raises(OperationalError, match="No such file") as raised:
            opened.cursor()
        assert find_trouble(raised.value) == TROUBLES[Cause.NO_FILE]
    assert list(tmp_path.iterdir()) == []


def test_a_link_to_a_file_that_does_not_exist_yet_is_followed(tmp_path: Path) -> None:
    link, file = tmp_path / "link.db", tmp_path / "data" / "new.db"
    link.symlink_to(file)
    with connect(link) as opened:
        opened.dialect.create_database(opened)
        opened.cursor().execute("CREATE TABLE things (id integer) STRICT")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_the_mode_of_an_existing_database_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "old.db"
    file.touch()
    file.chmod(0o640)
    with connect(file) as opened:
        opened.cursor().execute("CREATE TABLE things (id integer) STRICT")
    assert stat.S_IMODE(file.stat().st_mode) == 0o640


def test_files_that_others_can_read_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "data"
    folder.mkdir(mode=0o755)
    file, wal = folder / "calls.db", folder / "calls.db-wal"
    for path in (file, wal):
        path.touch(mode=0o600)
    monkeypatch.setitem(connection.settings_dict, "NAME", str(file))
    assert [finding.is_ok for finding in check_database_files()] == [True]
    wal.chmod(0o640)
    (finding,) = check_database_files()
    assert finding.severity is Severity.WARNING
    assert finding.text == f"Other users of this machine can read {wal}."
    assert finding.remedy == f"Run `chmod go= {wal}`."
    folder.chmod(0o700)
    assert [finding.is_ok for finding in check_database_files()] == [True]


def test_the_library_is_one_without_the_wal_reset_bug() -> None:
    pytest.importorskip("pysqlite3")
    assert get_library().sqlite_version_info >= FIXED

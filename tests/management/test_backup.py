"""`manage.py backup` copies an SQLite database that is in use, and `restore` puts it in place, with dispatch paused."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.management import CommandError, call_command
from django.db import DEFAULT_DB_ALIAS, OperationalError, connection, connections
from django.db.utils import load_backend

from eventservice.operators.models import OperatorAction
from eventservice.tenants.directory import create_tenant
from eventservice.tenants.models import Tenant
from timers.cell import get_cell_id
from timers.models import DispatchPause
from timers.pause import find_pause

# Without the mark `django_db`, which forbids the second connection that a restore needs.
pytestmark = pytest.mark.sqlite_only

# Tells when it has the database open, and keeps it open until its input ends.
USER = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('SELECT * FROM tenants'); print(flush=True); sys.stdin.read()"
# Writes pairs of rows in transactions, for ever: a copy that is no snapshot has an odd number.
WRITER = """
import sqlite3, sys, time
c = sqlite3.connect(sys.argv[1], timeout=30, isolation_level=None)
for n in range(10**9):
    c.execute("BEGIN IMMEDIATE")
    c.executemany("INSERT INTO metric_totals (name, value) VALUES (?, 1.0)", [(f"a/{n}",), (f"b/{n}",)])
    c.execute("COMMIT")
    print(n, flush=True)
    time.sleep(0.001)
"""


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file with an empty, migrated database."""
    file = tmp_path_factory.mktemp("template") / "template.db"
    environment = {**os.environ, "DB_PATH": str(file), "DATABASE_URL": ""}
    command = [sys.executable, "manage.py", "migrate", "-v0"]
    subprocess.run(command, check=True, cwd=settings.BASE_DIR, env=environment)
    return file


@pytest.fixture
def database(template: Path, tmp_path: Path, django_db_blocker: Any) -> Iterator[Path]:
    """Return the file of a database that is the default one during the test, with a tenant."""
    file = tmp_path / "data" / "calls.db"
    file.parent.mkdir()
    shutil.copy(template, file)
    usual = connections[DEFAULT_DB_ALIAS]
    own = load_backend(usual.settings_dict["ENGINE"]).DatabaseWrapper(
        {**usual.settings_dict, "NAME": str(file)}, DEFAULT_DB_ALIAS
    )
    connections[DEFAULT_DB_ALIAS] = own
    with django_db_blocker.unblock():
        create_tenant("acme")
        yield file
        own.close()
    connections[DEFAULT_DB_ALIAS] = usual


def run(*arguments: object) -> str:
    out = StringIO()
    call_command(*map(str, arguments), stdout=out)
    return out.getvalue()


def list_tenants() -> set[str]:
    return set(Tenant.objects.values_list("name", flat=True))


def list_files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def start_user(file: Path, program: str = USER) -> subprocess.Popen[str]:
    user = subprocess.Popen(
        [sys.executable, "-c", program, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert user.stdout is not None
    user.stdout.readline()
    return user


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


# --- backup ---


def test_a_copy_is_one_file_that_only_its_user_can_read(database: Path, tmp_path: Path) -> None:
    text = run("backup", tmp_path / "b.db")
    assert "found no damage" in text
    assert list_files(tmp_path) == {"data", "b.db"}
    assert stat.S_IMODE((tmp_path / "b.db").stat().st_mode) == 0o600
    with closing(sqlite3.connect(tmp_path / "b.db")) as copy:
        assert copy.execute("SELECT name FROM tenants").fetchall() == [("acme",)]
        assert copy.execute("PRAGMA journal_mode").fetchall() == [("delete",)]
        assert copy.execute("SELECT action FROM operator_actions").fetchall() == [("backup",)]


def test_a_copy_that_is_made_while_others_write_is_a_snapshot(database: Path, tmp_path: Path) -> None:
    connection.close()
    writer = start_user(database, WRITER)
    try:
        for number in range(5):
            run("backup", tmp_path / f"{number}.db")
        assert writer.poll() is None
    finally:
        end(writer)
    counts = []
    for number in range(5):
        with closing(sqlite3.connect(tmp_path / f"{number}.db")) as copy:
            counts += copy.execute("SELECT COUNT(*) FROM metric_totals").fetchone()
            assert copy.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]
    assert all(count % 2 == 0 for count in counts)


def test_no_file_is_overwritten_and_nothing_is_left_of_a_failure(database: Path, tmp_path: Path) -> None:
    (tmp_path / "b.db").write_text("important")
    with pytest.raises(CommandError, match=r"b\.db exists"):
        run("backup", tmp_path / "b.db")
    assert (tmp_path / "b.db").read_text() == "important"
    with pytest.raises(CommandError, match=r"No file can be created in .*: No such file or directory"):
        run("backup", tmp_path / "missing" / "b.db")
    assert list_files(tmp_path) == {"data", "b.db"}


def test_a_database_with_rows_that_refer_to_none_is_not_backed_up(database: Path, tmp_path: Path) -> None:
    connection.close()
    with closing(sqlite3.connect(database)) as raw, raw:
        raw.execute("INSERT INTO namespaces (tenant_id, name, num_shards, created_at) VALUES (?, 'x', 1, ?)",
                    ("0" * 32, "2026-03-01 12:00:00.000000"))  # fmt: skip
    with pytest.raises(CommandError, match=r"refer to missing rows: namespaces \(row \d+\) → tenants"):
        run("backup", tmp_path / "b.db")
    assert not (tmp_path / "b.db").exists()


# --- restore ---


def test_a_restored_database_is_that_of_the_backup_with_dispatch_paused(
    database: Path, tmp_path: Path
) -> None:
    run("backup", tmp_path / "monday.db")
    create_tenant("later")
    text = run("restore", tmp_path / "monday.db")
    assert "dispatch resume" in text
    assert list_tenants() == {"acme"}
    pause = find_pause()
    assert pause is not None
    assert pause.reason == "Restored from monday.db"
    assert [entry.action for entry in OperatorAction.across_tenants.order_by("id")] == ["backup", "restore"]
    # The backup can be restored again.
    with closing(sqlite3.connect(tmp_path / "monday.db")) as copy:
        assert copy.execute("SELECT COUNT(*) FROM dispatch_pauses").fetchone() == (0,)


def test_a_restored_database_is_another_cell(database: Path, tmp_path: Path) -> None:
    """It must not act on what it remembers to have taken from a timer store."""
    cell_id = get_cell_id()
    run("backup", tmp_path / "b.db")
    assert get_cell_id() == cell_id
    run("restore", tmp_path / "b.db")
    assert get_cell_id() != cell_id


def test_the_previous_database_is_kept_is_refused_and_can_be_restored(database: Path, tmp_path: Path) -> None:
    run("backup", tmp_path / "b.db")
    create_tenant("later")
    run("restore", tmp_path / "b.db")
    connection.close()
    (kept,) = (path for path in database.parent.iterdir() if path.name != database.name)
    assert kept.name.startswith("calls.db.before-restore-")
    assert str(kept) in run_with_file(kept, "tenant", "list", expect=1)
    assert "was replaced by a backup" in run_with_file(kept, "tenant", "list", expect=1)
    run("restore", kept)
    assert list_tenants() == {"acme", "later"}


def run_with_file(file: Path, *arguments: str, expect: int = 0) -> str:
    """Run a command in a process of its own, on another database. Return its output."""
    environment = {**os.environ, "DB_PATH": str(file), "DATABASE_URL": ""}
    command = [sys.executable, "manage.py", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=settings.BASE_DIR, env=environment, check=False
    )
    assert done.returncode == expect, done.stderr
    return done.stdout + done.stderr


def test_nothing_of_an_old_log_is_left_behind(database: Path, tmp_path: Path) -> None:
    run("backup", tmp_path / "b.db")
    connection.close()
    # As after a kill: what was committed last is in the log only.
    writer = start_user(database, WRITER)
    end(writer)
    assert "calls.db-wal" in list_files(database.parent)
    run("restore", tmp_path / "b.db")
    connection.close()
    assert {name.partition(".before")[0] for name in list_files(database.parent)} == {"calls.db"}
    (kept,) = (path for path in database.parent.iterdir() if path.name != database.name)
    with closing(sqlite3.connect(kept)) as raw:
        assert raw.execute("SELECT COUNT(*) > 0 FROM metric_totals").fetchone() == (1,)
    with closing(sqlite3.connect(database)) as raw:
        assert raw.execute("SELECT COUNT(*) FROM metric_totals").fetchone() == (0,)
        assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_a_database_in_use_is_not_replaced_and_its_user_is_named(database: Path, tmp_path: Path) -> None:
    run("backup", tmp_path / "b.db")
    create_tenant("later")
    connection.close()
    user = start_user(database)  # idle, and outside of any transaction
    try:
        with pytest.raises(CommandError, match=rf"is in use by process {user.pid} \("):
            run("restore", tmp_path / "b.db")
    finally:
        end(user)
    assert list_files(database.parent) <= {"calls.db", "calls.db-wal", "calls.db-shm"}
    assert list_tenants() == {"acme", "later"}


def test_a_damaged_or_missing_database_is_replaced(database: Path, tmp_path: Path) -> None:
    run("backup", tmp_path / "b.db")
    connection.close()
    database.write_bytes(b"no database" * 1000)
    run("restore", tmp_path / "b.db")
    assert list_tenants() == {"acme"}
    connection.close()
    (kept,) = (path for path in database.parent.iterdir() if path.name != database.name)
    assert kept.read_bytes().startswith(b"no database")
    kept.unlink()
    database.unlink()
    # It would be applied to the next database of this name.
    Path(f"{database}-wal").write_bytes(b"an old log")
    assert "is kept" not in run("restore", tmp_path / "b.db")
    assert list_tenants() == {"acme"}


def test_a_damaged_database_in_use_is_not_replaced(database: Path, tmp_path: Path) -> None:
    run("backup", tmp_path / "b.db")
    connection.close()
    user = start_user(database)
    try:
        with database.open("r+b") as file:
            file.write(b"\xff" * 100)
        with pytest.raises(CommandError, match=f"in use by process {user.pid} "):
            run("restore", tmp_path / "b.db")
    finally:
        end(user)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no tables of it"),
        (b"no database" * 1000, "file is not a database"),
        (None, "There is no file"),
    ],
)
def test_what_is_no_backup_is_refused(
    database: Path, tmp_path: Path, content: bytes | None, message: str
) -> None:
    if content is not None:
        (tmp_path / "b.db").write_bytes(content)
    with pytest.raises(CommandError, match=message):
        run("restore", tmp_path / "b.db")
    assert list_tenants() == {"acme"}
    connection.close()
    assert list_files(database.parent) == {"calls.db"}


def test_a_damaged_backup_is_refused(database: Path, tmp_path: Path) -> None:
    run("backup", tmp_path / "b.db")
    with (tmp_path / "b.db").open("r+b") as file:
        file.seek(20 * 4096)
        file.write(os.urandom(30 * 4096))
    with pytest.raises(CommandError, match=r"damaged|cannot be copied"):
        run("restore", tmp_path / "b.db")
    assert list_tenants() == {"acme"}


def test_a_backup_of_a_newer_release_is_refused(database: Path, tmp_path: Path) -> None:
    run("backup", tmp_path / "b.db")
    with closing(sqlite3.connect(tmp_path / "b.db")) as raw, raw:
        raw.execute(
            "INSERT INTO django_migrations (app, name, applied) VALUES ('timers', '9999_future', '2030-01-01 00:00:00.000000')"
        )
    with pytest.raises(CommandError, match=r"newer release: .* lacks the migrations timers\.9999_future"):
        run("restore", tmp_path / "b.db")


@pytest.mark.parametrize("was_paused", [False, True])
def test_a_backup_of_an_older_release_that_had_a_pause_is_restored_paused(
    database: Path, tmp_path: Path, was_paused: bool
) -> None:
    """The schema is that of the release which introduced the pause."""
    if was_paused:
        run("dispatch", "pause", "--reason", "Maintenance")
    migrate_back("timers", "0010_dispatch_pauses")
    connection.close()
    shutil.copy(database, tmp_path / "b.db")
    text = run("restore", tmp_path / "b.db")
    assert "run `manage.py migrate`" in text
    assert "Dispatch is paused" in text
    run("migrate", "-v0")
    pause = find_pause()
    assert pause is not None
    assert pause.reason == "Restored from b.db"
    assert OperatorAction.across_tenants.filter(action="restore").count() == 1


def migrate_back(app: str, name: str) -> None:
    """Undo the migrations of the default database until this one, and what depends on them."""
    run("migrate", app, name, "-v0")


def test_a_backup_of_an_older_release_without_a_pause_is_restored_and_says_how_to_pause(
    database: Path, tmp_path: Path
) -> None:
    run("backup", tmp_path / "b.db")
    with closing(sqlite3.connect(tmp_path / "b.db")) as raw, raw:
        raw.execute(f"DROP TABLE {DispatchPause._meta.db_table}")
        raw.execute("DELETE FROM django_migrations WHERE app = 'timers' AND name >= '0010_dispatch_pauses'")
    assert "`manage.py migrate`, then `manage.py dispatch pause`" in run("restore", tmp_path / "b.db")
    assert list_tenants() == {"acme"}


def test_a_retired_database_is_refused_when_a_process_connects_again(database: Path, tmp_path: Path) -> None:
    connection.close()
    with closing(sqlite3.connect(database)) as raw:
        raw.execute(f"PRAGMA application_id = {0x45535254}")
    with pytest.raises(OperationalError, match="retired"):
        list_tenants()

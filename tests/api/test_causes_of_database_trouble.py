"""A full disk, a read-only or damaged file and a lock are named, in the API's problem, by /readyz and by doctor.

Each is real: a small file system of its own, or a file that is what it is. A process of its own meets it.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

pytestmark = [pytest.mark.sqlite_only, pytest.mark.skipif(sys.platform != "linux", reason="mounts on Linux")]

# Prepares a database, runs the trouble given as Python, and prints what the API, /readyz and doctor say.
WITNESS = """
import io, json, os, sys
from pathlib import Path
import django; django.setup()
from django.core.management import call_command
from django.db import connection
from django.test import Client
folder = Path(os.environ["DB_PATH"]).parent
key = ""
if "prepared" in sys.argv:
    from eventservice.tenants.directory import create_tenant
    from eventservice.tenants.keys import create_key
    call_command("migrate", verbosity=0)
    tenant = create_tenant("acme").tenant_id
    key = create_key(tenant, ["read", "write"])[1]
    connection.close()
exec(sys.argv[1])
client = Client(headers={"Authorization": f"Bearer {key or 'es_unknown'}"}, raise_request_exception=False)
spec = {"method": "POST", "url": "https://example.com/", "body": {"x": "x" * 500_000}}
body = {"name": "n", "requestSpec": spec, "delay": "1h"}
path = f"/api/v1/tenants/{tenant if key else '00000000-0000-7000-8000-000000000000'}/service-calls"
answer = client.post(path, body, "application/json")
ready = client.get("/readyz")
out = io.StringIO()
try:
    call_command("doctor", as_json=True, stdout=out)
except SystemExit:
    pass
found = {finding["name"]: finding for finding in json.loads(out.getvalue())["findings"] if not finding["ok"]}
print("WITNESS" + json.dumps({"api": answer.json(), "ready": ready.json(), "doctor": found}))
"""

MOUNT = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=4m tmpfs "$0" && exec "$@"']
FILL = """
with (folder / "ballast").open("wb", buffering=0) as ballast:
    try:
        while ballast.write(bytes(4096)): pass
    except OSError: pass
"""
FREEZE = """os.system(f"mount -o remount,ro '{folder}'")"""


def witness(database: Path, trouble: str, *given: str, mount: bool = False) -> dict[str, Any]:
    command = [sys.executable, "-c", WITNESS, trouble, *given]
    done = subprocess.run(
        [*MOUNT, str(database.parent), *command] if mount else command,
        env={
            **os.environ,
            "DB_PATH": str(database),
            "DATABASE_URL": "",
            "DJANGO_SETTINGS_MODULE": "eventservice.settings",
            "PYTHONPATH": str(settings.BASE_DIR),
        },
        cwd=settings.BASE_DIR,
        capture_output=True,
        text=True,
        timeout=60,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("WITNESS")]
    assert lines, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(lines[-1].removeprefix("WITNESS"))
    return found


def can_mount(folder: Path) -> bool:
    try:
        return subprocess.run([*MOUNT, str(folder), "true"], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


def assert_named(found: dict[str, Any], text: str, finding: str) -> None:
    assert (found["api"]["status"], text in found["api"]["detail"]) == (503, True), found["api"]
    assert [error["pointer"] for error in found["ready"]["errors"]] == ["/checks/database"]
    assert text in found["ready"]["errors"][0]["detail"]
    assert text in found["doctor"][finding]["detail"], found["doctor"]


@pytest.mark.parametrize(
    ("trouble", "text", "finding"),
    [
        (FILL, "The disk of the database is full", "database"),
        ("connection.ensure_connection()" + FILL, "The disk of the database is full", "writing"),
        (FREEZE, "The database is read-only", "database"),
    ],
    ids=["full", "full, with an open connection", "read-only"],
)
def test_a_disk_that_is_full_or_read_only(tmp_path: Path, trouble: str, text: str, finding: str) -> None:
    if not can_mount(tmp_path):
        pytest.skip("this user may not mount a file system")
    found = witness(tmp_path / "full.db", trouble, "prepared", mount=True)
    assert found["api"]["code"] == "database_busy"
    assert "Nothing was changed" in found["api"]["detail"]
    assert_named(found, text, finding)
    # What follows from it is left out.
    assert {"engine", "dispatcher"}.isdisjoint(found["doctor"])
    if finding == "writing":
        assert next(iter(found["doctor"])) == "writing"


def test_a_file_that_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "folder.db").mkdir()
    found = witness(tmp_path / "folder.db", "")
    assert_named(found, "The database file cannot be opened", "database")
    assert "DB_PATH" in found["doctor"]["database"]["advice"]
    assert str(tmp_path) not in json.dumps(found["api"])


def test_a_folder_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = witness(tmp_path / "file" / "sub" / "calls.db", "")
    assert_named(found, "The database file cannot be opened", "database")


def test_a_database_that_does_not_exist(tmp_path: Path) -> None:
    found = witness(tmp_path / "missing.db", "")
    assert_named(found, "The database does not exist", "database")
    assert not (tmp_path / "missing.db").exists()
    assert str(tmp_path) not in json.dumps(found["api"])


def test_a_database_without_tables(tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()
    found = witness(tmp_path / "empty.db", "")
    assert_a_migration_is_missing(found)


def test_a_database_without_a_column_of_this_release(tmp_path: Path) -> None:
    downgrade = """call_command("migrate", "orchestration", "zero", "--fake", verbosity=0)
with connection.cursor() as cursor:
    cursor.execute("ALTER TABLE api_keys RENAME COLUMN name TO former_name")
connection.close()"""
    assert_a_migration_is_missing(witness(tmp_path / "calls.db", downgrade, "prepared"))


def assert_a_migration_is_missing(found: dict[str, Any]) -> None:
    assert (found["api"]["status"], found["api"]["code"]) == (503, "unavailable")
    assert (
        "The database lacks tables or columns, which `manage.py migrate` creates." in found["api"]["detail"]
    )
    assert "try again" not in found["api"]["detail"]
    assert [error["pointer"] for error in found["ready"]["errors"]] == ["/checks/migrations"]


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "calls.db").write_bytes(b"no database" * 1000)
    assert_named(witness(tmp_path / "calls.db", ""), "the file is not a database", "database")


LOCK = """
from eventservice.db.dialects.sqlite import base
import sqlite3
base.PRAGMAS = tuple(p.replace("busy_timeout = 5000", "busy_timeout = 50") for p in base.PRAGMAS)
holder = sqlite3.connect(os.environ["DB_PATH"], isolation_level=None)
holder.execute("BEGIN IMMEDIATE")
"""


def test_a_file_that_another_process_has_locked(tmp_path: Path) -> None:
    found = witness(tmp_path / "calls.db", LOCK, "prepared")
    assert_named(found, "Another process has locked the database", "database lock")
    # What needs no lock is checked, and what follows from the lock is left out.
    assert next(iter(found["doctor"])) == "database lock"
    assert {"sqlite library", "disk space", "writing", "engine"}.isdisjoint(found["doctor"])
    assert "The write lock is held by process " in found["doctor"]["database lock"]["advice"]
    assert " -c " in found["doctor"]["database lock"]["advice"]
    with sqlite3.connect(tmp_path / "calls.db") as after:
        assert after.execute("SELECT COUNT(*) FROM service_calls").fetchone() == (0,)


BLAME = """
from eventservice.db.now import db_now
from eventservice.operators.health import blame_database, check_cluster, read_cluster
blamed = [f.text for f in blame_database(check_cluster(read_cluster(db_now(), []))) if not f.is_ok]
assert len(blamed) == 1 and blamed[0].startswith("Another process has locked the database"), blamed
"""


def test_pages_blame_the_lock_and_not_the_engines_that_it_stops(tmp_path: Path) -> None:
    assert witness(tmp_path / "calls.db", LOCK + BLAME, "prepared")

"""A command that finds no tables, or no database, says in one line which database it looked at. It shows no traceback."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from django.core.management import call_command

from eventservice.kernel.env import ENV_FILE
from eventservice.tenants.models import Tenant
from tests.source_rules import ROOT

COMMANDS = [
    "apikey create --operator", "changepassword root", "clearsessions", "cluster", "createsuperuser --no-input --username root --email a@b.example",
    "demo", "dispatch_outbox", "outbox status", "poll_timers", "prune --older-than 30d", "qcluster", "qinfo", "reencrypt",
    "requeue_stuck", "roll_up", "seed_demo", "tenant list", "webhook list",
]  # fmt: skip
# Runs each of the commands as manage.py does, in one process.
PROGRAM = """
import sys
import manage

for command in sys.argv[1:]:
    sys.argv[1:] = command.split()
    try:
        manage.main()
        result = "no error"
    except SystemExit as ended:
        result = str(ended.code)
    except Exception as error:
        result = f"Traceback {error!r}"
    sys.stderr.write("\\n")
    print(f"{command}: {result}", file=sys.stderr)
"""


def run_commands(*commands: str, **variables: str) -> list[str]:
    """Return what the commands have written to standard error, by lines."""
    env = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *commands],
        cwd=ROOT,
        env={**env, ENV_FILE: os.devnull, "DJANGO_SUPERUSER_PASSWORD": "correct horse", **variables},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines()


@pytest.mark.sqlite_only
def test_a_database_without_tables_is_named(tmp_path: Path) -> None:
    file = tmp_path / "empty.db"
    file.touch()
    told = run_commands(*COMMANDS, DB_PATH=str(file))
    assert len([line for line in told if f"SQLite {file} has no tables." in line]) == len(COMMANDS)
    assert len(
        [line for line in told if "set DATABASE_URL or DB_PATH in the environment or in" in line]
    ) == len(COMMANDS)
    assert not [line for line in told if "Traceback" in line or "no error" in line]


@pytest.mark.sqlite_only
def test_a_database_that_does_not_exist_is_named_and_not_created(tmp_path: Path) -> None:
    file = tmp_path / "data" / "missing.db"
    told = run_commands(*COMMANDS, "doctor", "makemigrations --check", DB_PATH=str(file))
    remedy = "If DB_PATH (or DATABASE_URL) names the right file, run `manage.py migrate`, which creates it."
    expected = f"The database does not exist. {remedy} (SQLite {file}: No such file or directory)"
    assert len([line for line in told if line.endswith(expected)]) == len(COMMANDS)
    assert not [line for line in told if "Traceback" in line]
    assert list(tmp_path.iterdir()) == []
    run_commands("migrate --verbosity 0", DB_PATH=str(file))
    assert file.is_file()


@pytest.mark.sqlite_only
def test_a_database_that_does_not_answer_is_named() -> None:
    url = "postgres://eventservice:hush@127.0.0.1:1/events"
    told = run_commands("tenant list", "migrate", DATABASE_URL=url)
    assert len([line for line in told if "PostgreSQL events at 127.0.0.1:1: " in line]) == 2
    assert not [line for line in told if "Traceback" in line or "hush" in line]


@pytest.mark.sqlite_only
def test_a_schema_of_another_version_is_named(tmp_path: Path) -> None:
    file = tmp_path / "partial.db"
    told = run_commands("migrate --verbosity 0 tenants", "outbox status", DB_PATH=str(file))
    assert told[-1].startswith(f"outbox status: SQLite {file} lacks ")
    assert told[-1].endswith("migrations of this code. Run `manage.py migrate`.")


@pytest.mark.sqlite_only
def test_a_migration_that_fails_says_why(tmp_path: Path) -> None:
    file = tmp_path / "partial.db"
    run_commands("migrate --verbosity 0 tenants", DB_PATH=str(file))
    with closing(sqlite3.connect(file)) as database:
        database.execute("CREATE TABLE outbox (id INTEGER)")
    told = run_commands("migrate --verbosity 0", DB_PATH=str(file))
    assert f'SQLite {file}: table "outbox" already exists.' in told[-1]
    assert told[-1].endswith("migrations are left. When the reason is gone, run the command again.")


@pytest.mark.django_db
def test_commands_that_find_nothing_name_the_database(capsys: pytest.CaptureFixture[str]) -> None:
    Tenant.objects.all().delete()
    for command in (
        "tenant list",
        "apikey list",
        "webhook list",
        "outbox status",
        "outbox parked",
        "qinfo",
    ):
        call_command(*command.split())
        assert "test" in capsys.readouterr().out, command

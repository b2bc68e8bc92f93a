"""`manage.py migrate` says what it takes to create a trigger, if the user of MariaDB or MySQL may not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from django.conf import settings
from django.db import connection

from eventservice.db.configuration import BY_ENGINE
from tests.databases import get_database_name

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.skipif(connection.vendor != "mysql", reason="about privileges of MariaDB and MySQL"),
]

PASSWORD = "plain"


@pytest.fixture
def plain_url() -> Iterator[str]:
    """Return the URL of a database whose user has all privileges on it except TRIGGER."""
    name = f"test_plain_{os.getpid()}"
    collation = BY_ENGINE[settings.DATABASES["default"]["ENGINE"]].collation  # type: ignore[attr-defined]
    with connection.cursor() as cursor:
        cursor.execute("SHOW COLUMNS FROM mysql.db")
        columns = [column for column, *_ in cursor.fetchall() if column.endswith("_priv")]
        given = [column for column in columns if column not in ("Grant_priv", "Trigger_priv")]
        cursor.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4 COLLATE {collation}")
        try:
            cursor.execute(f"CREATE USER {name} IDENTIFIED BY '{PASSWORD}'")
            # The user of the tests cannot grant.
            cursor.execute(
                f"INSERT INTO mysql.db (Host, Db, User, {', '.join(given)})"
                f" VALUES ('%%', %s, %s, {', '.join(['%s'] * len(given))})",
                [name.replace("_", r"\_"), name, *["Y"] * len(given)],
            )
            cursor.execute("FLUSH PRIVILEGES")
            server = connection.settings_dict
            address = f"{server['HOST']}:{server['PORT'] or 3306}"
            yield f"{get_database_name()}://{name}:{PASSWORD}@{address}/{name}"
        finally:
            cursor.execute(f"DROP DATABASE {name}")
            cursor.execute(f"DROP USER IF EXISTS {name}")


def migrate(url: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "manage.py", "migrate", "tenants", "--verbosity", "0"],
        cwd=settings.BASE_DIR,
        env={**os.environ, "DATABASE_URL": url},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_user_without_the_privilege_learns_what_to_grant_and_can_go_on(plain_url: str) -> None:
    for _ in range(2):  # what was migrated before stays, and the next run begins where this one ended
        refused = migrate(plain_url)
        assert refused.returncode == 1
        assert "does not let this user create a trigger" in refused.stderr
        assert "SET GLOBAL log_bin_trust_function_creators = 1" in refused.stderr
        assert "Traceback" not in refused.stderr

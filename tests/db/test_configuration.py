"""DATABASE_URL names the database in the usual form. What is wrong with it is reported without quoting it."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import connection
from django.utils.module_loading import import_string

from eventservice.db.configuration import BY_ENGINE, parse_database_url, read_database
from eventservice.db.dialects import get_dialect
from eventservice.db.dialects.configuration import Waits
from eventservice.kernel.env import Environment

WAITS = Waits(connect_seconds=3, lock_seconds=4, statement_seconds=6, idle_transaction_seconds=15)
SQLITE = "eventservice.db.dialects.sqlite"
POSTGRESQL = "eventservice.db.dialects.postgresql"
MARIADB = "eventservice.db.dialects.mariadb"
MYSQL = "eventservice.db.dialects.mysql"
BASE = Path("/srv/app")


@pytest.mark.parametrize(
    ("variables", "file"),
    [
        ({}, "/srv/app/data/event_service.db"),
        ({"DB_PATH": "x/y.db"}, "/srv/app/x/y.db"),
        ({"DB_PATH": "/var/lib/y.db"}, "/var/lib/y.db"),
        ({"DATABASE_URL": "sqlite:///x/y.db"}, "/srv/app/x/y.db"),
        ({"DATABASE_URL": "sqlite:///:memory:"}, ":memory:"),
        ({"DATABASE_URL": "sqlite:////var/lib/y%20z.db"}, "/var/lib/y z.db"),
        ({"DATABASE_URL": "sqlite:////var/lib/y.db", "DB_PATH": "ignored.db"}, "/var/lib/y.db"),
    ],
    ids=str,
)
def test_sqlite_is_a_file(variables: dict[str, str], file: str) -> None:
    env = Environment(variables)
    database = read_database(env, BASE, WAITS)
    assert (database["ENGINE"], database["NAME"]) == (SQLITE, file)
    env.check()


@pytest.mark.parametrize(
    ("scheme", "engine", "option", "value"),
    [
        ("postgres", POSTGRESQL, "sslmode", "require"),
        ("postgresql", POSTGRESQL, "host", "/run/postgresql"),
        ("mariadb", MARIADB, "ssl_ca", "/etc/ca.pem"),
        ("mysql", MYSQL, "ssl_verify_identity", "true"),
    ],
)
def test_all_parts_of_a_servers_url_are_read(scheme: str, engine: str, option: str, value: str) -> None:
    assert parse_database_url(f"{scheme}://us%40er:p%2Fw%3A@db.test:6543/calls?{option}={value}") == {
        "ENGINE": engine,
        "NAME": "calls",
        "USER": "us@er",
        "PASSWORD": "p/w:",
        "HOST": "db.test",
        "PORT": "6543",
        "OPTIONS": {option: value},
    }


def test_the_driver_chooses_what_a_servers_url_leaves_out() -> None:
    database = parse_database_url("postgres:///calls")
    assert [database[part] for part in ("USER", "PASSWORD", "HOST", "PORT", "OPTIONS")] == [
        "",
        "",
        "",
        "",
        {},
    ]


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("oracle://me:hunter2@db/calls", "has the scheme 'oracle': expected one of sqlite, postgres"),
        ("db.test/calls", "has the scheme ''"),
        ("postgres://me:hunter2@db", "names no database: expected postgres://user:password@host:port/name"),
        ("sqlite://", "names no file: expected sqlite:///path/to/file.db"),
        (
            "postgres://me:hunter2@db/calls?sslmod=require",
            "has the option 'sslmod', which is unknown: did you mean 'sslmode'?",
        ),
        (
            "mysql://me@db/calls?ssl-ca=/etc/ca.pem",
            "has the option 'ssl-ca', which is unknown: did you mean 'ssl_ca'?",
        ),
        (
            "postgres://db/calls?user=me&password=very&hunter2=x",
            "has an unknown option, number 3 after the question mark",
        ),
        ("postgres://me:hunter2@db:port/calls", "cannot be read"),
        ("postgres://me:hunter2@db:70000/calls", "cannot be read"),
        ("postgres://me:hunter2/more@db/calls", "must be %-encoded"),
        ("postgres://me:hunter2[@db/calls", "must be %-encoded"),
        ("postgres://me:hunter2@hunter2@db/calls", "more than one @ before its host: special characters"),
        ("postgres://me:hunter2@hunter2/hunter2@db/calls", "an @ or / in the name of the database: special"),
        ("mysql://me:12/hunter2@db/calls", "an @ or / in the name of the database: special characters"),
        ("mariadb://me:hunter2@db/calls/more", "an @ or / in the name of the database"),
        ("postgres://me:hunter2@db/calls#hunter2", "has a # that is not %-encoded: write it as %23"),
        ("postgres://me:12#hunter2@db/calls", "has a # that is not %-encoded"),
        ("sqlite:////var/lib/a#hunter2.db", "has a # that is not %-encoded"),
        ("postgres://me:hunter2\N{FULLWIDTH COMMERCIAL AT}@db/calls", "must be %-encoded"),
    ],
)
def test_a_wrong_url_is_reported_without_its_password(url: str, says: str) -> None:
    env = Environment({"DATABASE_URL": url})
    read_database(env, BASE, WAITS)
    with pytest.raises(ImproperlyConfigured) as refusal:
        env.check()
    assert "DATABASE_URL " in str(refusal.value)
    assert says in str(refusal.value)
    assert "hunter2" not in str(refusal.value)


@pytest.mark.parametrize(
    ("url", "option", "expected"),
    [
        (
            "postgres:///calls",
            "options",
            ["idle_in_transaction_session_timeout=15s", "lock_timeout=4s", "statement_timeout=6s"],
        ),
        (
            "mariadb:///calls",
            "init_command",
            [
                "idle_transaction_timeout=15",
                "innodb_lock_wait_timeout=4",
                " lock_wait_timeout=4",
                "max_statement_time=6",
            ],
        ),
        (
            "mysql:///calls",
            "init_command",
            ["innodb_lock_wait_timeout=4", " lock_wait_timeout=4", "max_execution_time=6000"],
        ),
    ],
)
def test_each_session_is_limited(url: str, option: str, expected: list[str]) -> None:
    database = read_database(Environment({"DATABASE_URL": url}), BASE, WAITS)
    assert all(limit in str(database["OPTIONS"][option]) for limit in expected)
    assert (database["CONN_MAX_AGE"], database["CONN_HEALTH_CHECKS"]) == (None, True)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (
            "postgres:///calls",
            {
                "connect_timeout": 3, "answer_seconds": 8, "tcp_user_timeout": 6000, "keepalives": 1,
                "keepalives_idle": 3, "keepalives_interval": 1, "keepalives_count": 3,
            },
        ),
        ("mariadb:///calls", {"connect_timeout": 3, "read_timeout": 8, "write_timeout": 8}),
        (
            "mysql:///calls",
            {"connect_timeout": 3, "read_timeout": 8, "write_timeout": 8, "idle_transaction_seconds": 15},
        ),
    ],
)  # fmt: skip
def test_each_wait_of_the_driver_is_limited(url: str, expected: dict[str, int]) -> None:
    database = read_database(Environment({"DATABASE_URL": url}), BASE, WAITS)
    assert {name: database["OPTIONS"][name] for name in expected} == expected


@pytest.mark.parametrize(
    "url", ["postgres:///calls?connect_timeout=60", "mariadb:///calls?connect_timeout=60&charset=utf8mb4"]
)
def test_a_url_does_not_set_what_the_settings_limit(url: str) -> None:
    env = Environment({"DATABASE_URL": url})
    read_database(env, BASE, WAITS)
    with pytest.raises(
        ImproperlyConfigured, match=r"DATABASE_URL sets connect_timeout: set DB_CONNECT_SECONDS"
    ):
        env.check()


def test_an_unknown_backend_is_refused_with_the_names_of_those_that_are_supported() -> None:
    unknown: Any = SimpleNamespace(settings_dict={"ENGINE": "django.db.backends.oracle"})
    with pytest.raises(
        ImproperlyConfigured, match=r"'django.db.backends.oracle' is not supported: expected one of"
    ) as refusal:
        get_dialect(unknown)
    assert all(engine in str(refusal.value) for engine in BY_ENGINE)


@pytest.mark.django_db
def test_the_default_connection_has_a_dialect() -> None:
    assert get_dialect() is get_dialect(connection) is connection.dialect  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("engine", "version", "expected"),
    [
        (MARIADB, "9.7.0", "says MariaDB, but its server is 9.7.0: begin it with mysql://"),
        (
            MYSQL,
            "10.11.4-MariaDB-1",
            "says MySQL, but its server is 10.11.4-MariaDB-1: begin it with mariadb://",
        ),
    ],
)
def test_mariadb_and_mysql_are_not_taken_for_each_other(
    monkeypatch: pytest.MonkeyPatch, engine: str, version: str, expected: str
) -> None:

    server = MagicMock()
    server.cursor.return_value.__enter__.return_value.fetchone.return_value = (version, 28800)
    monkeypatch.setattr("eventservice.db.dialects.mysql_family.backend.BoundedConnection", lambda: server)
    wrapper = import_string(f"{engine}.base.DatabaseWrapper")

    with pytest.raises(ImproperlyConfigured, match=re.escape(expected)):
        wrapper({}).get_new_connection({"init_command": "SET SESSION x = 1"})
    server.close.assert_called_once()

"""DATABASE_URL says which database, in the form that everyone knows; what is wrong with it is said without it."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured

from eventservice.kernel.env import MARIADB, POSTGRESQL, SQLITE, Environment, parse_database_url

BASE = Path("/srv/app")


@pytest.mark.parametrize(
    ("variables", "file"),
    [
        ({}, "/srv/app/data/event_service.db"),
        ({"DB_PATH": "x/y.db"}, "/srv/app/x/y.db"),
        ({"DB_PATH": "/var/lib/y.db"}, "/var/lib/y.db"),
        ({"DATABASE_URL": "sqlite:///y.db"}, "y.db"),
        ({"DATABASE_URL": "sqlite:////var/lib/y%20z.db"}, "/var/lib/y z.db"),
        ({"DATABASE_URL": "sqlite:////var/lib/y.db", "DB_PATH": "ignored.db"}, "/var/lib/y.db"),
    ],
    ids=str,
)
def test_sqlite_is_a_file(variables: dict[str, str], file: str) -> None:
    env = Environment(variables)
    assert env.database(BASE) == {"ENGINE": SQLITE, "NAME": file}
    env.check()


@pytest.mark.parametrize(
    ("scheme", "engine"),
    [("postgres", POSTGRESQL), ("postgresql", POSTGRESQL), ("mysql", MARIADB), ("mariadb", MARIADB)],
)
def test_a_servers_url_has_all_its_parts(scheme: str, engine: str) -> None:
    assert parse_database_url(f"{scheme}://us%40er:p%2Fw%3A@db.test:6543/calls?sslmode=require") == {
        "ENGINE": engine,
        "NAME": "calls",
        "USER": "us@er",
        "PASSWORD": "p/w:",
        "HOST": "db.test",
        "PORT": "6543",
        "OPTIONS": {"sslmode": "require"},
    }


def test_what_a_servers_url_leaves_out_is_the_drivers_to_choose() -> None:
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
        ("postgres://me:hunter2@db:port/calls", "cannot be read"),
        ("postgres://me:hunter2@db:70000/calls", "cannot be read"),
        ("postgres://me:hunter2/more@db/calls", "must be %-encoded"),
        ("postgres://me:hunter2[@db/calls", "must be %-encoded"),
        ("postgres://me:hunter2\N{FULLWIDTH COMMERCIAL AT}@db/calls", "must be %-encoded"),
    ],
)
def test_a_wrong_url_is_named_with_its_fault_and_without_its_password(url: str, says: str) -> None:
    env = Environment({"DATABASE_URL": url})
    env.database(BASE)
    with pytest.raises(ImproperlyConfigured) as refusal:
        env.check()
    assert "DATABASE_URL " in str(refusal.value)
    assert says in str(refusal.value)
    assert "hunter2" not in str(refusal.value)

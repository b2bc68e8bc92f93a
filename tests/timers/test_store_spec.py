"""`TIMER_STORES` is checked when a process starts, and a message about it never contains a secret."""

from __future__ import annotations

import sys

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from eventservice.kernel.env import Environment
from timers.checks import check_timer_stores
from timers.stores.factory import build_store
from timers.stores.port import NO_CELL
from timers.stores.store_spec import (
    LIBRARIES,
    SEPARATOR,
    STORES,
    StoreSpec,
    check_store_names,
)

SECRET = "s3cret"
URL = f"postgresql+psycopg://user:{SECRET}@db.example:5432/timers"


def read_stores(value: str) -> list[StoreSpec]:
    """Return what the settings make of a value of the variable."""
    env = Environment({"TIMER_STORES": value})
    stores = env.parse_items("TIMER_STORES", [], StoreSpec.parse, check_store_names, separator=SEPARATOR)
    env.check()
    return stores


def test_stores_are_separated_by_semicolons() -> None:
    """Not by commas, which separate the hosts of one store."""
    first, second = read_stores(f"fleet={URL}?host=a,b; cold=mysql+pymysql://u@h/db;")
    assert (first.name, first.scheme, first.kind) == ("fleet", "postgresql+psycopg", "sql")
    assert first.url == f"{URL}?host=a,b"
    assert (second.name, second.scheme) == ("cold", "mysql+pymysql")
    assert read_stores("") == []


def test_the_representation_has_no_password() -> None:
    assert SECRET not in repr(StoreSpec.parse(f"main={URL}"))


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ("main", "expected name=url"),
        (URL, "expected name=url"),
        (f"Main={URL}", "the name has up to 32 lowercase letters"),
        (f"main=mongo://user:{SECRET}@h/db", "main: the scheme 'mongo' is not one of postgresql+psycopg, "),
        (f"main=postgresql+psycopg://user:{SECRET}@h", "main: the URL must name a host and a database"),
        (f"main=postgresql+psycopg:///{SECRET}", "main: the URL must name a host and a database"),
        (f"main={URL}#x", "main: the URL has a fragment"),
        (f"main=postgresql+psycopg://user:{SECRET}@[h/db", "main: the URL cannot be read"),
        (f"main={URL};main={URL}", "two stores are called main"),
        # What follows a semicolon in a password.
        (f"main=postgresql+psycopg://user:a;{SECRET}@h/db", "expected name=url"),
    ],
)
def test_a_wrong_item_is_refused_without_being_quoted(item: str, message: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=r"TIMER_STORES") as raised:
        read_stores(item)
    assert message in str(raised.value)
    assert SECRET not in str(raised.value)


def test_every_scheme_names_its_libraries() -> None:
    assert STORES.keys() == LIBRARIES.keys()


@pytest.mark.parametrize("scheme", sorted(STORES))
def test_the_system_check_accepts_every_scheme_or_names_the_missing_library(scheme: str) -> None:
    """It connects to nothing: nobody listens at this address."""
    place = "eu-central-1" if scheme == "dynamodb" else "127.0.0.1:1"
    with override_settings(TIMER_STORES=[StoreSpec.parse(f"main={scheme}://{place}/name")]):
        for error in check_timer_stores():
            assert error.msg.startswith("TIMER_STORES: main: the Python package '")
            assert error.msg.endswith("is not installed.")


@pytest.mark.parametrize("library", ["sqlalchemy", "psycopg"])
def test_the_system_check_reports_a_missing_library(monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with override_settings(TIMER_STORES=[StoreSpec.parse(f"main={URL}")]):
        (error,) = check_timer_stores()
    assert f"main: the Python package '{library}' is not installed" in error.msg
    assert SECRET not in error.msg


def test_a_url_that_the_library_cannot_read_is_refused_without_being_quoted() -> None:
    pytest.importorskip("sqlalchemy")
    spec = StoreSpec.parse(f"main=postgresql+psycopg://user:{SECRET}@host:port/db")
    with pytest.raises(ValueError, match=r"^main: the URL cannot be used by SQLAlchemy$"):
        build_store(spec, NO_CELL)

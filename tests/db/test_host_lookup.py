"""Name servers that do not answer hold up no process that needs a new connection."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import OperationalError, connection

from eventservice.db.dialects import host_lookup
from eventservice.db.dialects.host_lookup import is_host_name, look_up_host
from eventservice.db.errors import is_outcome_unknown

WAIT_SECONDS = 0.1


@pytest.fixture
def silent_name_servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep lookups waiting, as the system's resolver does. Nothing is known yet."""
    released, look_up = threading.Event(), socket.getaddrinfo

    def wait(host: Any, *args: Any, **options: Any) -> Any:
        if host != "db.example":
            return look_up(host, *args, **options)
        released.wait(30)
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", wait)
    monkeypatch.setattr(host_lookup, "_known", {})
    monkeypatch.setattr(host_lookup, "_pending", {})
    yield
    released.set()


@pytest.mark.parametrize(
    ("host", "is_name"),
    [
        ("db.example", True),
        ("localhost", True),
        ("127.0.0.1", False),
        ("::1", False),
        ("/run/postgresql", False),
        ("", False),
        ("a.example,b.example", False),
    ],
)
def test_only_names_are_looked_up(host: str, is_name: bool) -> None:
    assert is_host_name(host) is is_name


def test_a_name_is_looked_up() -> None:
    assert "127.0.0.1" in look_up_host("localhost", 5)


@pytest.mark.usefixtures("silent_name_servers")
def test_a_lookup_that_takes_too_long_is_given_up() -> None:
    with pytest.raises(OSError, match=r"'db.example' could not be looked up within 0.1 s"):
        look_up_host("db.example", WAIT_SECONDS)
    with pytest.raises(OSError, match="could not be looked up"):
        look_up_host("db.example", WAIT_SECONDS)
    assert len([thread for thread in threading.enumerate() if thread.name == "host-lookup"]) == 1


@pytest.mark.usefixtures("silent_name_servers")
def test_the_last_addresses_are_used_meanwhile() -> None:
    host_lookup._known["db.example"] = ["192.0.2.1"]
    assert look_up_host("db.example", WAIT_SECONDS) == ["192.0.2.1"]


def test_a_connection_is_made_by_name(transactional_db: None) -> None:
    if connection.vendor == "sqlite":
        pytest.skip("a file has no host")
    client = connection.copy()
    client.settings_dict["HOST"] = "localhost"
    with client.cursor() as cursor:
        cursor.execute("SELECT 1")
        assert cursor.fetchone()[0] == 1
    client.close()


@pytest.mark.usefixtures("silent_name_servers")
def test_a_connection_that_finds_no_server_has_written_nothing(transactional_db: None) -> None:
    if connection.vendor == "sqlite":
        pytest.skip("a file has no host")
    client = connection.copy()
    client.settings_dict["HOST"] = "db.example"
    client.settings_dict["OPTIONS"]["connect_timeout"] = 2
    with pytest.raises(OperationalError) as raised:
        client.ensure_connection()
    assert not is_outcome_unknown(raised.value)

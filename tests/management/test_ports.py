"""`make run` checks its ports before it does anything else, and suggests free ones."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from unittest.mock import Mock

import pytest
from django.core.management import CommandError, call_command

from eventservice.management.commands import up
from eventservice.management.ports import require_free_ports

DEFAULTS = {"PORT": 1, "TARGET_PORT": 2}


def get_port(listener: socket.socket) -> int:
    return int(listener.getsockname()[1])


@pytest.fixture
def used_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield get_port(listener)


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return get_port(listener)


def test_free_ports_are_accepted_and_stay_free(free_port: int) -> None:
    require_free_ports({"PORT": free_port}, DEFAULTS)
    require_free_ports({"PORT": free_port}, DEFAULTS)


def test_a_port_in_use_is_refused_and_a_free_one_is_suggested(used_port: int, free_port: int) -> None:
    with pytest.raises(
        CommandError,
        match=f"Port {used_port} is already in use. Try: PORT={free_port} TARGET_PORT=\\d+ make run$",
    ) as error:
        require_free_ports({"PORT": free_port, "TARGET_PORT": used_port}, DEFAULTS)
    require_free_ports({"TARGET_PORT": int(re.findall(r"\d+", str(error.value))[-1])}, DEFAULTS)


def test_a_default_port_that_is_free_is_not_suggested(used_port: int, free_port: int) -> None:
    with pytest.raises(CommandError, match=r" Try: TARGET_PORT=\d+ make run$"):
        require_free_ports(
            {"PORT": free_port, "TARGET_PORT": used_port}, {"PORT": free_port, "TARGET_PORT": used_port}
        )


def test_all_ports_in_use_are_reported_at_once(used_port: int) -> None:
    with pytest.raises(CommandError) as error:
        require_free_ports({"PORT": used_port, "TARGET_PORT": used_port}, DEFAULTS)
    ports = re.findall(r"PORT=(\d+)", str(error.value))
    assert len(set(ports)) == 2


def test_two_processes_cannot_have_the_same_port(free_port: int) -> None:
    with pytest.raises(CommandError, match=f"Port {free_port} is already in use"):
        require_free_ports({"PORT": free_port, "TARGET_PORT": free_port}, DEFAULTS)


def test_nothing_is_started_if_a_port_is_in_use(
    used_port: int, free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = Mock()
    monkeypatch.setattr(up, "call_command", called)
    with pytest.raises(CommandError, match="is already in use"):
        call_command("up", "--port", str(used_port), "--target-port", str(free_port))
    called.assert_not_called()
